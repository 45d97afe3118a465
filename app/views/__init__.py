"""Parts of pages: what a tab or a fragment shows, composed of figures and widgets."""
