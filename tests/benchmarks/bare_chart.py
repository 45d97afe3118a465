"""The floor of pages with a chart: a Streamlit app that draws one small Plotly figure."""

import plotly.graph_objects as go
import streamlit as st

st.title("Bare")
st.plotly_chart(go.Figure(go.Scatter(y=[1, 3, 2])))
