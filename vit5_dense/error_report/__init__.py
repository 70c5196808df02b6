"""Where a trained model errs: its worst pictures, classes and confusions."""
