"""The report: one page, and figures for papers, as a pure function of the records."""
