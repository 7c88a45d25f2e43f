"""The page of `persist ui`: what a location holds, and held at any readable time, to look at in a browser.

Promises: it only reads, and reads pages, never a whole collection; nothing that is stored is interpreted as markup;
nothing is asked of any other server; without the token of its address, it answers nothing.
"""
