/* One rank of MPI for netns.py. It runs the collectives of fsccl-perf, times them by the same
 * rules, and checks each result.
 *
 *     mpirun ... mpi_peer collectives samples warm-up calls bytes...
 *
 * A sample is `calls` calls back to back between two barriers; its time is the slowest rank's.
 * Inputs are written before each sample and results are checked after it, off the clock. Each line
 * of the output is a JSON object with coll, bytes, p10_us, p50_us and wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { all_gather, reduce_scatter, broadcast, all_reduce, kinds };
static const char* const kNames[kinds] = {"all_gather", "reduce_scatter", "broadcast",
                                          "all_reduce"};

struct test {
  int kind, rank, ranks, calls;
  int count; /* elements of a buffer, or of a rank's block for all-gather and reduce-scatter */
  size_t inputs, outputs;
  float *input, *output;
};

static float value(int rank, size_t at, int sample) {
  return (float)((at * 7 + (size_t)sample * 13 + (size_t)rank * 31) % 1024);
}

static void prepare(const struct test* t, int sample) {
  for (size_t i = 0; i < t->inputs; i++) t->input[i] = value(t->rank, i, sample);
  if (t->kind == broadcast)
    for (size_t i = 0; i < t->outputs; i++) t->output[i] = t->rank == 0 ? value(0, i, sample) : 0;
}

static void call(const struct test* t) {
  switch (t->kind) {
    case all_gather:
      MPI_Allgather(t->input, t->count, MPI_FLOAT, t->output, t->count, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    case reduce_scatter:
      MPI_Reduce_scatter_block(t->input, t->output, t->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case broadcast:
      MPI_Bcast(t->output, t->count, MPI_FLOAT, 0, MPI_COMM_WORLD);
      break;
    default:
      MPI_Allreduce(t->input, t->output, t->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
}

static float expected(const struct test* t, size_t at, int sample) {
  const size_t count = (size_t)t->count;
  if (t->kind == all_gather) return value((int)(at / count), at % count, sample);
  if (t->kind == broadcast) return value(0, at, sample);
  float sum = 0;
  if (t->kind == reduce_scatter) at += (size_t)t->rank * count;
  for (int rank = 0; rank < t->ranks; rank++) sum += value(rank, at, sample);
  return sum;
}

static int by_size(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void measure(struct test* t, size_t bytes, int samples, int warmup) {
  const size_t elements = bytes / sizeof(float), block = elements / (size_t)t->ranks;
  t->count = (int)(t->kind == all_gather || t->kind == reduce_scatter ? block : elements);
  t->inputs = t->kind == broadcast ? 0 : t->kind == all_gather ? block : elements;
  t->outputs = t->kind == reduce_scatter ? block : elements;
  t->input = malloc((t->inputs + 1) * sizeof(float));
  t->output = malloc((t->outputs + 1) * sizeof(float));
  double* times = calloc((size_t)samples, sizeof(double));
  long long wrong = 0;
  for (int sample = -warmup; sample < samples; sample++) {
    prepare(t, sample + warmup);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (int i = 0; i < t->calls; i++) call(t);
    const double time = (MPI_Wtime() - start) / t->calls;
    MPI_Barrier(MPI_COMM_WORLD);
    if (sample >= 0) times[sample] = time * 1e6;
    for (size_t i = 0; i < t->outputs; i++)
      wrong += t->output[i] != expected(t, i, sample + warmup);
  }
  MPI_Allreduce(MPI_IN_PLACE, times, samples, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  qsort(times, (size_t)samples, sizeof(double), by_size);
  if (t->rank == 0)
    printf(
        "{\"coll\": \"%s\", \"bytes\": %zu, \"p10_us\": %.3f, \"p50_us\": %.3f, \"wrong\": %lld}\n",
        kNames[t->kind], bytes, times[samples / 10], times[samples / 2], wrong);
  fflush(stdout);
  free(times);
  free(t->input);
  free(t->output);
}

int main(int argc, char** argv) {
  struct test t = {0};
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &t.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &t.ranks);
  if (argc < 6) {
    fprintf(stderr, "mpi_peer collectives samples warm-up calls bytes...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  t.calls = (int)strtol(argv[4], NULL, 10);
  for (t.kind = 0; t.kind < kinds; t.kind++)
    for (int i = 5; i < argc && strstr(argv[1], kNames[t.kind]); i++)
      measure(&t, strtoul(argv[i], NULL, 10), (int)strtol(argv[2], NULL, 10),
              (int)strtol(argv[3], NULL, 10));
  MPI_Finalize();
  return 0;
}
