#!/bin/sh
# Runs one test and leaves a record of it in $TEST_RESULTS for tools/count_tests.py: NAME.command
# has the words of the command, one on each line; NAME.status has the exit status, and is missing if
# the test was ended by force; NAME.xml has the cases of GoogleTest or pytest. A program that ends
# with status 77, skipped, may leave the reason in $TEST_RECORD.reason. NAME does not come from the
# number of this process, because numbers recur in one run, and a record would overwrite another
# one.
record=$(mktemp "$TEST_RESULTS/$TEST_TREE-XXXXXXXX") || exit
printf '%s\n' "$@" >"$record.command"
GTEST_OUTPUT="xml:$record.xml"
# shellcheck disable=SC2089,SC2090 # pytest reads the quotes
PYTEST_ADDOPTS="--junitxml='$record.xml'"
TEST_RECORD=$record
# shellcheck disable=SC2090
export GTEST_OUTPUT PYTEST_ADDOPTS TEST_RECORD
"$@"
status=$?
printf '%s' "$status" >"$record.status"
exit "$status"
