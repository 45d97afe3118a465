"""The floor of page loads: a Streamlit app that shows a title and a sentence."""

import streamlit as st

st.title("Bare")
st.write("A title and a sentence.")
