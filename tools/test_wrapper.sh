#!/bin/sh
# Runs one test and leaves a record of it in $TEST_RESULTS for tools/count_tests.py: NAME.command
# (what was run, a word a line), NAME.status (its exit status; none when it was ended by force) and,
# from GoogleTest and pytest, NAME.xml (its cases). A program that ends with status 77, skipped, may
# leave the reason in $TEST_RECORD.reason. Not by the number of this process: numbers come again in
# one run, and one record went over another.
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
