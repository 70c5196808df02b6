"""What models cost: time and memory measured side by side, operations counted."""
