"""A document as PDF: pages of paper with the blocks, plots and colours of the HTML page, drawn by reportlab."""
