"""Other task systems under the same load and the same kills, each with the durable settings its docs give."""
