/* A file is not trusted: each value is checked, and a bad line ends the reading with its number. */
#include "digits.h"

#include <stdio.h>
#include <stdlib.h>

enum { kMaxImages = 100000, kLineBytes = 1024 };

static int parse_line(const char* line, float* pixels, int* label) {
  int i;
  for (i = 0; i <= kPixels; ++i) {
    char* end;
    const long value = strtol(line, &end, 10);
    const long limit = i < kPixels ? 16 : kClasses - 1;
    const char last = i < kPixels ? ',' : '\n';
    if (end == line || value < 0 || value > limit || *end != last) return -1;
    if (i < kPixels)
      pixels[i] = (float)value / 16.0f;
    else
      *label = (int)value;
    line = end + 1;
  }
  return 0;
}

static int allocate_digits(digit_set_t* set, size_t capacity) {
  set->count = 0;
  set->pixels = malloc(capacity * kPixels * sizeof *set->pixels);
  set->labels = malloc(capacity * sizeof *set->labels);
  return set->pixels != NULL && set->labels != NULL ? 0 : -1;
}

static int read_lines(FILE* file, const char* path, digit_set_t* train, digit_set_t* test) {
  char line[kLineBytes];
  size_t number = 0;
  while (fgets(line, sizeof line, file) != NULL) {
    digit_set_t* set = number % 5 == 4 ? test : train;
    if (number == kMaxImages ||
        parse_line(line, set->pixels + set->count * kPixels, &set->labels[set->count]) != 0) {
      fprintf(stderr, "%s:%zu: expected %d values 0..16 and a digit 0..9, and at most %d lines\n",
              path, number + 1, kPixels, kMaxImages);
      return -1;
    }
    ++set->count;
    ++number;
  }
  if (train->count > 0 && test->count > 0 && !ferror(file)) return 0;
  fprintf(stderr, "%s: holds %zu images, too few to train and to test\n", path, number);
  return -1;
}

int digits_read(const char* path, digit_set_t* train, digit_set_t* test) {
  FILE* file = fopen(path, "r");
  int status;
  if (file == NULL) {
    perror(path);
    return -1;
  }
  status = allocate_digits(train, kMaxImages) != 0 || allocate_digits(test, kMaxImages) != 0
               ? -1
               : read_lines(file, path, train, test);
  fclose(file);
  return status;
}

void digits_free(digit_set_t* set) {
  free(set->pixels);
  free(set->labels);
}
