"""What cuDNN graphs are made of; families import it, never the reverse."""
