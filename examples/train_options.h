/* The command line of train. If a value is not understood, the program prints the accepted ones and
 * ends. */
#ifndef TRAIN_OPTIONS_H
#define TRAIN_OPTIONS_H

typedef struct train_options {
  /* local processes to start; 0 makes the program one rank of the environment's job */
  int ranks;
  int mixed; /* bf16 parameters and gradients, fp32 shards */
  int flat;  /* the flat layout instead of one cut per parameter */
  int epochs;
  const char* data_path;
  const char* losses_path;   /* for rank 0, which writes one loss a line; or NULL */
  const char* held_out_path; /* the same for the test images */
  /* not negative; each seed stands for other first parameters and another order of the images */
  int seed;
  int reversed; /* sums over the images of a batch are formed in the reverse order */
  /* codecs between hosts (docs/codecs.md): numbers of fsccl_codec_kind_t, and flags; 0 is none */
  int gather_codec, reduce_codec;
  unsigned reduce_flags;
  int codecs_everywhere; /* on one host, too */
} train_options_t;

/* Returns 0, or -1 after a message. */
int train_options_parse(int argc, char** argv, train_options_t* options);

#endif
