"""Where attention goes: metrics, a streaming tracer, streaming perplexity, interventions, token kinds."""
