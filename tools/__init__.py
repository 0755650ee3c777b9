"""Small programs for the people who work on Lamina; not shipped."""
