// The same test, compiled as C++: with the oldest standard that the header promises, and with the
// newest.
#include "abi_test.c"
