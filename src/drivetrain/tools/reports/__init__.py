"""What the HTML reports of the tools are made of: markup, the page around it, its parts and charts."""
