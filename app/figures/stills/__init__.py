"""A still of each study for the home page, made from its own traces: no Plotly, no Streamlit."""
