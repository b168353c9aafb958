/*
 * Reads the handwritten digits (data/README.md): lines of 64 grey values 0..16 and a label 0..9.
 * Every fifth image is kept for the test. The order of the file is kept, so that every rank that
 * reads it holds the same images under the same numbers.
 */
#ifndef DIGITS_H
#define DIGITS_H

#include <stddef.h>

enum { kPixels = 64, kClasses = 10 };

typedef struct digit_set {
  size_t count;
  float* pixels; /* count rows of kPixels values, 0..1 */
  int* labels;
} digit_set_t;

/* Returns 0, or -1 with a message on stderr that names the line at fault. */
int digits_read(const char* path, digit_set_t* train, digit_set_t* test);
void digits_free(digit_set_t* set);

#endif
