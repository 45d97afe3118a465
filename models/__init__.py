"""Methods: networks, samplers, metrics, estimators. Arrays in, arrays out."""
