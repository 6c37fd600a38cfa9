"""Is more hardware needed? Answers from facts: deadlines, outcomes, costs, serving capacity, what-ifs."""
