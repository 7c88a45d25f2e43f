"""The page of `persist ui`: the contents of a location at any readable time, in a browser.

Promises: it only reads, page by page, and never a whole collection. It interprets no stored value as markup, and sends
no request to any other server. It answers only requests with the token of its address.
"""
