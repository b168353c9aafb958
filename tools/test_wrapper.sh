#!/bin/sh
# Runs one test and leaves a record of it in $FSCCL_TEST_RESULTS for tools/count_tests.py: NAME.command (what was run),
# NAME.status (its exit status; none when it was ended by force) and, from a GoogleTest program, NAME.xml (its cases).
record=$FSCCL_TEST_RESULTS/$FSCCL_TEST_TREE-$$
printf '%s' "$*" >"$record.command"
GTEST_OUTPUT="xml:$record.xml"
export GTEST_OUTPUT
"$@"
status=$?
printf '%s' "$status" >"$record.status"
exit "$status"
