"""Keep every slot of every server full: prompts in, answers judged and committed, until all are done."""
