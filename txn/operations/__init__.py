"""Operations on a topology. They return values and print nothing."""
