"""The classes that users call: Client, Collection, View, MultiWrite and followers.

Promises: they check arguments, and call the operations of the floors below. They hold no other state.
"""
