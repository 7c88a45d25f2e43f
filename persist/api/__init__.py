"""What users touch: Client, Collection, View, MultiWrite and followers."""
