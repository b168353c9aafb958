/* getopt_long does the parsing. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "train_options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef DIGITS_CSV
#define DIGITS_CSV "examples/data/digits.csv"
#endif

static const char kUsage[] =
    "usage: train [options]\n"
    "  --ranks N            start N local processes, 1 to 256 (default: the job of torchrun, "
    "mpirun, mpiexec or srun; 2 without)\n"
    "  --mixed              bf16 for parameters and gradients, fp32 for the shards\n"
    "  --flat               cut the layers into equal parts instead of cutting each parameter by "
    "rows\n"
    "  --epochs N           1 to 1000 (default: 20)\n"
    "  --data FILE          the images (default: " DIGITS_CSV
    ")\n"
    "  --print-losses FILE  write the loss of each epoch\n";

static int number(const char* name, const char* text, long most, int* value) {
  char* end;
  const long parsed = strtol(text, &end, 10);
  if (end == text || *end != '\0' || parsed < 1 || parsed > most) {
    fprintf(stderr, "train: --%s %s: a number from 1 to %ld is accepted\n", name, text, most);
    return -1;
  }
  *value = (int)parsed;
  return 0;
}

int train_options_parse(int argc, char** argv, train_options_t* options) {
  static const struct option kOptions[] = {{"ranks", required_argument, NULL, 'r'},
                                           {"mixed", no_argument, NULL, 'm'},
                                           {"flat", no_argument, NULL, 'f'},
                                           {"epochs", required_argument, NULL, 'e'},
                                           {"data", required_argument, NULL, 'd'},
                                           {"print-losses", required_argument, NULL, 'l'},
                                           {NULL, 0, NULL, 0}};
  const train_options_t defaults = {0, 0, 0, 20, DIGITS_CSV, NULL};
  int option;
  *options = defaults;
  while ((option = getopt_long(argc, argv, "", kOptions, NULL)) != -1) {
    switch (option) {
      case 'r':
        if (number("ranks", optarg, 256, &options->ranks) != 0) return -1;
        break;
      case 'm':
        options->mixed = 1;
        break;
      case 'f':
        options->flat = 1;
        break;
      case 'e':
        if (number("epochs", optarg, 1000, &options->epochs) != 0) return -1;
        break;
      case 'd':
        options->data_path = optarg;
        break;
      case 'l':
        options->losses_path = optarg;
        break;
      default:
        fputs(kUsage, stderr);
        return -1;
    }
  }
  if (optind < argc) {
    fprintf(stderr, "train: %s: not an option\n%s", argv[optind], kUsage);
    return -1;
  }
  return 0;
}
