/* Parses the command line with getopt_long. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "train_options.h"

#include <fsccl/codec.h>
#include <fsccl/fsccl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    "  --print-losses FILE  write the loss of each epoch\n"
    "  --held-out-losses FILE  write that of the test images after each\n"
    "  --seed N             1 to 1000: other parameters to begin with, another order of images\n"
    "  --reversed           sum over the images of a batch in the reverse order\n"
    "  --gather-codec KIND  of parameters between hosts: delta, int8, fp8, mxfp8, float12\n"
    "  --reduce-codec KIND  of gradients between hosts: bf16, int8, int4, float12; int8+,\n"
    "                       int4+, float12+: with feedback\n"
    "  --codecs-everywhere  use them on one host, too (docs/codecs.md)\n";

typedef struct codec_name {
  const char* name;
  int kind;
  unsigned flags;
} codec_name_t;
static const codec_name_t kGathers[] = {
    {"delta", FSCCL_CODEC_DELTA, 0},    {"int8", FSCCL_CODEC_INT8, 0},
    {"fp8", FSCCL_CODEC_FP8, 0},        {"mxfp8", FSCCL_CODEC_MXFP8, 0},
    {"float12", FSCCL_CODEC_CUSTOM, 0}, {NULL, 0, 0}};
static const codec_name_t kReductions[] = {
    {"bf16", FSCCL_CODEC_BF16, 0},
    {"int8", FSCCL_CODEC_INT8, 0},
    {"int4", FSCCL_CODEC_INT4, 0},
    {"int8+", FSCCL_CODEC_INT8, FSCCL_CODEC_ERROR_FEEDBACK},
    {"int4+", FSCCL_CODEC_INT4, FSCCL_CODEC_ERROR_FEEDBACK},
    {"float12", FSCCL_CODEC_CUSTOM, 0},
    {"float12+", FSCCL_CODEC_CUSTOM, FSCCL_CODEC_ERROR_FEEDBACK},
    {NULL, 0, 0}};

static const codec_name_t* codec(const codec_name_t* known, const char* option, const char* name) {
  for (; known->name != NULL; ++known)
    if (strcmp(known->name, name) == 0) return known;
  fprintf(stderr, "train: --%s %s: not a codec\n%s", option, name, kUsage);
  return NULL;
}

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
                                           {"held-out-losses", required_argument, NULL, 'o'},
                                           {"seed", required_argument, NULL, 's'},
                                           {"reversed", no_argument, NULL, 'b'},
                                           {"gather-codec", required_argument, NULL, 'g'},
                                           {"reduce-codec", required_argument, NULL, 'c'},
                                           {"codecs-everywhere", no_argument, NULL, 'w'},
                                           {NULL, 0, NULL, 0}};
  const train_options_t defaults = {0, 0, 0, 20, DIGITS_CSV, NULL, NULL, 0, 0, 0, 0, 0, 0};
  const codec_name_t* found;
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
      case 'o':
        options->held_out_path = optarg;
        break;
      case 's':
        if (number("seed", optarg, 1000, &options->seed) != 0) return -1;
        break;
      case 'b':
        options->reversed = 1;
        break;
      case 'g':
        if ((found = codec(kGathers, "gather-codec", optarg)) == NULL) return -1;
        options->gather_codec = found->kind;
        break;
      case 'c':
        if ((found = codec(kReductions, "reduce-codec", optarg)) == NULL) return -1;
        options->reduce_codec = found->kind;
        options->reduce_flags = found->flags;
        break;
      case 'w':
        options->codecs_everywhere = 1;
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
