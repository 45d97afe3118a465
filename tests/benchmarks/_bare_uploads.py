"""The peer of uploads: a Streamlit app that takes files and counts them."""

import streamlit as st

files = st.file_uploader("Files", accept_multiple_files=True)
if files:
    st.write(f"taken: {len(files)}")
