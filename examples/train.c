/*
 * Trains a small network on handwritten digits, fully sharded over N ranks, through the public C
 * API alone.
 *
 * Each layer is one unit. A rank stores only its shard of every parameter, in fp32. unshard gathers
 * a layer just before it is used, reshard gives its memory back, reduce_grads averages the
 * gradients into shards, and the optimizer works on shards. A global batch is divided among the
 * ranks, so the network learns the same with any number of ranks: the losses differ only because
 * fp32 sums are formed in another order (by less than 0.01 %).
 *
 *   train --ranks 4           four local processes           train --mixed    bf16 for what travels
 *   mpirun -n 4 train         one rank of an existing job; mpiexec, srun and torchrun likewise
 *
 * The other files are mlp.c (arithmetic), digits.c (data), train_options.c (command line) and
 * local_ranks.c (processes).
 */
#include <fsccl/codec.h>
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "digits.h"
#include "float12.h"
#include "local_ranks.h"
#include "mlp.h"
#include "train_options.h"

enum { kLayers = 3, kWeight = 0, kBias = 1, kParams = 2, kBatch = 48 };
static const mlp_shape_t kShapes[kLayers] = {{kPixels, 128}, {128, 64}, {64, kClasses}};
/* The rate falls linearly over the epochs, to almost nothing. */
static const double kLearningRate = 0.05, kMomentum = 0.9, kMaxGradNorm = 1.0,
                    kWantedAccuracy = 0.95;

/* Stops this rank with the library's own explanation. The other ranks then learn that it has ended,
 * and stop as well. */
static void check(fsccl_status_t status, const char* call) {
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  if (status >= 0) return;
  fsccl_last_error(&error);
  fprintf(stderr, "%s: %s: %s\n", call, fsccl_status_string(status), error.text);
  exit(1);
}
#define CHECK(call) check((call), #call)

static void* allocate(size_t count, size_t bytes) {
  void* memory = calloc(count > 0 ? count : 1, bytes);
  if (memory != NULL) return memory;
  fprintf(stderr, "out of memory\n");
  exit(1);
}

typedef struct layer {
  fsccl_unit_t unit;
  fsccl_work_t gather, reduction; /* operations in flight */
  fsccl_reduce_result_t reduced;  /* this rank's part of the gradient norm */
  /* the optimizer's state, sharded like the parameters */
  float* velocity[kParams];
  /* the gathered parameters as fp32, while the layer is unsharded */
  const float* param[kParams];
  float *wide_param[kParams], *wide_grad[kParams]; /* fp32 copies for computing, with --mixed */
} layer_t;

typedef struct trainer {
  fsccl_comm_t comm;
  fsccl_pool_t pool;
  int rank, ranks;
  int mixed, reversed;
  layer_t layers[kLayers];
  float* activations[kLayers + 1]; /* [0] is the input; [l + 1] the output of layer l */
  float* slopes[kLayers + 1];      /* derivatives of the loss with respect to the activations */
  int* labels;
} trainer_t;

/* ---------------------------------------------------------------------------------- set-up ---- */

/* The starting values depend on the element's place in the whole parameter alone, so they are the
 * same for any number of ranks. */
static void initialize_shards(layer_t* layer, size_t number, int seed) {
  fsccl_view_t shard;
  size_t p;
  uint64_t i;
  const float limit = sqrtf(6.0f / (float)kShapes[number].inputs);
  for (p = 0; p < kParams; ++p) {
    CHECK(fsccl_unit_shard(layer->unit, p, &shard));
    layer->velocity[p] = allocate(shard.count, sizeof(float));
    for (i = 0; i < shard.count; ++i)
      ((float*)shard.data)[i] =
          p == kWeight ? mlp_initial(number + kLayers * (uint64_t)seed, shard.offset + i, limit)
                       : 0.0f;
  }
}

static void create_layer(trainer_t* trainer, size_t number, const train_options_t* options) {
  layer_t* layer = &trainer->layers[number];
  const mlp_shape_t shape = kShapes[number];
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  fsccl_codec_t gathers = FSCCL_CODEC_INIT, sums = FSCCL_CODEC_INIT;
  fsccl_param_t params[kParams] = {FSCCL_PARAM_INIT, FSCCL_PARAM_INIT};
  params[kWeight].name = "weight";
  params[kWeight].dims = 2;
  params[kWeight].shape[0] = (int64_t)shape.outputs;
  params[kWeight].shape[1] = (int64_t)shape.inputs;
  params[kBias].name = "bias";
  params[kBias].dims = 1;
  params[kBias].shape[0] = (int64_t)shape.outputs;
  config.name = "layer";
  config.layout = options->flat ? FSCCL_LAYOUT_FLAT : FSCCL_LAYOUT_PER_PARAM;
  config.shard_comm = trainer->comm;
  config.pool = trainer->pool;
  config.wire_dtype = config.reduce_dtype = trainer->mixed ? FSCCL_BFLOAT16 : FSCCL_FLOAT32;
  gathers.kind = (fsccl_codec_kind_t)options->gather_codec;
  gathers.scope = sums.scope =
      options->codecs_everywhere ? FSCCL_CODEC_EVERYWHERE : FSCCL_CODEC_BETWEEN_HOSTS;
  gathers.custom = gathers.kind == FSCCL_CODEC_CUSTOM ? &kFloat12 : NULL;
  sums.kind = (fsccl_codec_kind_t)options->reduce_codec;
  sums.flags = options->reduce_flags;
  sums.custom = sums.kind == FSCCL_CODEC_CUSTOM ? &kFloat12 : NULL;
  config.gather_codec = &gathers;
  config.reduce_codec = &sums;
  CHECK(fsccl_unit_create(&config, params, kParams, &layer->unit));
  initialize_shards(layer, number, options->seed);
  layer->wide_param[kWeight] = allocate(shape.outputs * shape.inputs, sizeof(float));
  layer->wide_grad[kWeight] = allocate(shape.outputs * shape.inputs, sizeof(float));
  layer->wide_param[kBias] = allocate(shape.outputs, sizeof(float));
  layer->wide_grad[kBias] = allocate(shape.outputs, sizeof(float));
}

static void create_trainer(trainer_t* trainer, const fsccl_comm_config_t* where,
                           const train_options_t* options, size_t most_samples) {
  fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
  size_t l;
  memset(trainer, 0, sizeof *trainer);
  trainer->mixed = options->mixed;
  trainer->reversed = options->reversed;
  CHECK(fsccl_comm_create(where, &trainer->comm));
  CHECK(fsccl_comm_rank(trainer->comm, &trainer->rank));
  CHECK(fsccl_comm_size(trainer->comm, &trainer->ranks));
  CHECK(fsccl_pool_create(trainer->comm, &memory, &trainer->pool));
  for (l = 0; l < kLayers; ++l) create_layer(trainer, l, options);
  for (l = 0; l <= kLayers; ++l) {
    const size_t width = l == 0 ? kPixels : kShapes[l - 1].outputs;
    trainer->activations[l] = allocate(most_samples * width, sizeof(float));
    trainer->slopes[l] = allocate(kBatch * width, sizeof(float));
  }
  trainer->labels = allocate(most_samples, sizeof(int));
}

static void destroy_trainer(trainer_t* trainer) {
  size_t l, p;
  for (l = 0; l < kLayers; ++l) {
    CHECK(fsccl_unit_destroy(trainer->layers[l].unit));
    for (p = 0; p < kParams; ++p) {
      free(trainer->layers[l].velocity[p]);
      free(trainer->layers[l].wide_param[p]);
      free(trainer->layers[l].wide_grad[p]);
    }
  }
  CHECK(fsccl_pool_destroy(trainer->pool));
  CHECK(fsccl_comm_destroy(trainer->comm));
  for (l = 0; l <= kLayers; ++l) {
    free(trainer->activations[l]);
    free(trainer->slopes[l]);
  }
  free(trainer->labels);
}

/* --------------------------------------------------------- one layer: gather and give back ---- */

/* Begins to gather a layer. The call returns at once; the layer before it can be computed
 * meanwhile. */
static void begin_gather(layer_t* layer) {
  CHECK(fsccl_unit_unshard(layer->unit, FSCCL_UNSHARD_READ, NULL, &layer->gather));
}

static void finish(fsccl_work_t* work, const char* what) {
  check(fsccl_work_wait(*work, -1), what); /* -1 stands for the communicator's deadline */
  CHECK(fsccl_work_release(*work));
}

/* Waits for a gather. Afterwards layer->param holds the whole parameters as fp32, until reshard. */
static void finish_gather(const trainer_t* trainer, layer_t* layer) {
  fsccl_view_t whole;
  size_t p;
  finish(&layer->gather, "gathering a layer");
  for (p = 0; p < kParams; ++p) {
    CHECK(fsccl_unit_param(layer->unit, p, &whole));
    layer->param[p] = trainer->mixed ? layer->wide_param[p] : (const float*)whole.data;
    if (trainer->mixed) mlp_widen(whole.data, layer->wide_param[p], whole.count);
  }
}

/* -------------------------------------------------------------------------------- the step ---- */

/* Computes the logits of `samples` images, at activations[kLayers]. Layer l + 1 is gathered while
 * layer l is computed. */
static void forward(trainer_t* trainer, size_t samples) {
  size_t l;
  begin_gather(&trainer->layers[0]);
  for (l = 0; l < kLayers; ++l) {
    layer_t* layer = &trainer->layers[l];
    if (l + 1 < kLayers) begin_gather(&trainer->layers[l + 1]);
    finish_gather(trainer, layer);
    mlp_forward(kShapes[l], layer->param[kWeight], layer->param[kBias], trainer->activations[l],
                trainer->activations[l + 1], samples, l + 1 < kLayers);
    CHECK(fsccl_unit_reshard(layer->unit, NULL));
  }
}

/* Writes one layer's gradients into the memory that the reduction reads, and computes the slopes of
 * the layer below. */
static void layer_gradients(trainer_t* trainer, size_t l, size_t samples) {
  layer_t* layer = &trainer->layers[l];
  fsccl_view_t grad[kParams];
  float* target[kParams];
  size_t p;
  for (p = 0; p < kParams; ++p) {
    CHECK(fsccl_unit_grad(layer->unit, p, NULL, &grad[p]));
    target[p] = trainer->mixed ? layer->wide_grad[p] : grad[p].data;
  }
  mlp_backward(kShapes[l], layer->param[kWeight], trainer->activations[l], trainer->slopes[l + 1],
               target[kWeight], target[kBias], l > 0 ? trainer->slopes[l] : NULL, samples, l > 0);
  for (p = 0; p < kParams && trainer->mixed; ++p)
    mlp_narrow(layer->wide_grad[p], grad[p].data, grad[p].count);
}

/* Computes gradients layer by layer, from the last one. While the gradients of a layer are reduced,
 * those of the layer below are already computed. */
static void backward(trainer_t* trainer, size_t samples, size_t global_batch) {
  fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
  size_t l;
  /* Gradients are sums over samples; this factor makes them means over the global batch. */
  config.scale = 1.0 / (double)global_batch;
  begin_gather(&trainer->layers[kLayers - 1]);
  for (l = kLayers; l-- > 0;) {
    layer_t* layer = &trainer->layers[l];
    if (l > 0) begin_gather(&trainer->layers[l - 1]);
    finish_gather(trainer, layer);
    layer_gradients(trainer, l, samples);
    CHECK(fsccl_unit_reshard(layer->unit, NULL));
    config.result = &layer->reduced;
    CHECK(fsccl_unit_reduce_grads(layer->unit, &config, NULL, &layer->reduction));
  }
  for (l = kLayers; l-- > 0;) finish(&trainer->layers[l].reduction, "reducing a layer's gradients");
}

/* Returns the factor that limits the norm of the gradients, or 0 if a gradient is infinite or NaN:
 * the step is then skipped. The reductions have already summed the squares of this rank's
 * gradients; an all-reduce of 8 bytes adds those of the other ranks. All ranks get the same bits,
 * so they all decide the same. */
static double clip_factor(trainer_t* trainer) {
  double norm_squared = 0.0, norm;
  size_t l;
  for (l = 0; l < kLayers; ++l) norm_squared += trainer->layers[l].reduced.norm_squared;
  CHECK(fsccl_all_reduce(&norm_squared, &norm_squared, 1, FSCCL_FLOAT64, FSCCL_SUM, trainer->comm,
                         NULL, NULL));
  norm = sqrt(norm_squared);
  if (!isfinite(norm)) return 0.0;
  return norm > kMaxGradNorm ? kMaxGradNorm / norm : 1.0;
}

/* Updates momentum and parameters in the fp32 shards that this rank owns. This needs no
 * communication: the next unshard gathers the new values. */
static void update_shards(trainer_t* trainer, double factor, double rate) {
  size_t l, p;
  uint64_t i;
  for (l = 0; l < kLayers; ++l) {
    for (p = 0; p < kParams; ++p) {
      layer_t* layer = &trainer->layers[l];
      fsccl_view_t shard, grad;
      CHECK(fsccl_unit_shard(layer->unit, p, &shard));
      CHECK(fsccl_unit_sharded_grad(layer->unit, p, &grad));
      for (i = 0; i < shard.count; ++i) {
        float* velocity = &layer->velocity[p][i];
        *velocity = (float)kMomentum * *velocity + (float)factor * ((float*)grad.data)[i];
        ((float*)shard.data)[i] -= (float)rate * *velocity;
      }
    }
  }
}

/* ------------------------------------------------------------------------------ the epochs ---- */

/* Copies this rank's part of images order[begin ..end) into the input. Returns the number of these
 * images, which may be 0. */
static size_t load_samples(trainer_t* trainer, const digit_set_t* set, const size_t* order,
                           size_t begin, size_t end) {
  const size_t count = end - begin, rank = (size_t)trainer->rank, ranks = (size_t)trainer->ranks;
  const size_t first = begin + count * rank / ranks, last = begin + count * (rank + 1) / ranks;
  size_t i;
  for (i = first; i < last; ++i) {
    const size_t to = trainer->reversed ? last - 1 - i : i - first;
    memcpy(trainer->activations[0] + to * kPixels, set->pixels + order[i] * kPixels,
           kPixels * sizeof(float));
    trainer->labels[to] = set->labels[order[i]];
  }
  return last - first;
}

/* Trains on every image once, in a new order. Returns the sum of this rank's losses. */
static double train_epoch(trainer_t* trainer, const digit_set_t* set, size_t* order,
                          uint64_t* random, double rate) {
  double loss = 0.0;
  size_t begin, i;
  for (i = set->count - 1; i > 0; --i) { /* every rank makes the same order */
    const size_t other = (size_t)(mlp_random(random) % (i + 1)), held = order[i];
    order[i] = order[other];
    order[other] = held;
  }
  for (begin = 0; begin < set->count; begin += kBatch) {
    const size_t end = begin + kBatch < set->count ? begin + kBatch : set->count;
    const size_t samples = load_samples(trainer, set, order, begin, end);
    double factor;
    forward(trainer, samples);
    memcpy(trainer->slopes[kLayers], trainer->activations[kLayers],
           samples * kClasses * sizeof(float));
    loss += mlp_loss(trainer->slopes[kLayers], trainer->labels, samples, kClasses);
    backward(trainer, samples, end - begin);
    factor = clip_factor(trainer);
    if (factor > 0.0) update_shards(trainer, factor, rate);
    CHECK(fsccl_pool_step(trainer->pool)); /* the end of a step: the pool may plan from it */
  }
  return loss;
}

/* Counts the test images of this rank's part that are recognised, and sums the losses of all. */
static void test_images(trainer_t* trainer, const digit_set_t* set, const size_t* order,
                        double* correct, double* loss) {
  const size_t samples = load_samples(trainer, set, order, 0, set->count);
  forward(trainer, samples);
  CHECK(fsccl_pool_step(trainer->pool));
  *correct = (double)mlp_correct(trainer->activations[kLayers], trainer->labels, samples, kClasses);
  *loss = mlp_loss(trainer->activations[kLayers], trainer->labels, samples, kClasses);
}

/* Opens the file to which rank 0 writes losses. Returns NULL if there is none. */
static FILE* losses_file(const trainer_t* trainer, const char* path) {
  FILE* file = NULL;
  if (trainer->rank == 0 && path != NULL && (file = fopen(path, "w")) == NULL) perror(path);
  return file;
}

static int run(const fsccl_comm_config_t* where, const train_options_t* options,
               const digit_set_t* train, const digit_set_t* test) {
  trainer_t trainer;
  FILE *losses, *held_out;
  size_t *order = allocate(train->count, sizeof *order),
         *test_order = allocate(test->count, sizeof *test_order), i;
  uint64_t random = 1 + (uint64_t)options->seed;
  double accuracy = 0.0;
  int epoch;
  create_trainer(&trainer, where, options, test->count > kBatch ? test->count : kBatch);
  for (i = 0; i < train->count; ++i) order[i] = i;
  for (i = 0; i < test->count; ++i) test_order[i] = i;
  losses = losses_file(&trainer, options->losses_path);
  held_out = losses_file(&trainer, options->held_out_path);
  for (epoch = 1; epoch <= options->epochs; ++epoch) {
    double totals[3]; /* loss; number of recognised test images; loss of test images */
    totals[0] = train_epoch(&trainer, train, order, &random,
                            kLearningRate * (options->epochs - epoch + 1) / options->epochs);
    test_images(&trainer, test, test_order, &totals[1], &totals[2]);
    CHECK(fsccl_all_reduce(totals, totals, 3, FSCCL_FLOAT64, FSCCL_SUM, trainer.comm, NULL, NULL));
    accuracy = totals[1] / (double)test->count;
    if (trainer.rank != 0) continue;
    printf("epoch %2d: loss %.6f, test accuracy %.2f %%\n", epoch, totals[0] / (double)train->count,
           100.0 * accuracy);
    if (losses != NULL) fprintf(losses, "%.9g\n", totals[0] / (double)train->count);
    if (held_out != NULL) fprintf(held_out, "%.9g\n", totals[2] / (double)test->count);
  }
  if (trainer.rank == 0)
    printf("%s, %d rank%s: test accuracy %.2f %% (wanted: %.0f %%)\n",
           options->mixed ? "bf16 on the wire" : "fp32", trainer.ranks,
           trainer.ranks == 1 ? "" : "s", 100.0 * accuracy, 100.0 * kWantedAccuracy);
  if (losses != NULL) fclose(losses);
  if (held_out != NULL) fclose(held_out);
  destroy_trainer(&trainer);
  free(order);
  free(test_order);
  return accuracy >= kWantedAccuracy ? 0 : 1;
}

/* Returns true if a launcher has started this process, even if the launcher's variables contradict
 * each other: fsccl_comm_create() will then say so. */
static int launched(void) {
  fsccl_launch_info_t info = FSCCL_LAUNCH_INFO_INIT;
  return fsccl_launcher(&info) != FSCCL_OK || info.launcher != NULL;
}

int main(int argc, char** argv) {
  fsccl_comm_config_t where =
      /* The defaults take this rank's place from the environment (torchrun, mpirun, srun). */
      FSCCL_COMM_CONFIG_INIT;
  fsccl_unique_id_t id;
  train_options_t options;
  digit_set_t train, test;
  int status;
  if (train_options_parse(argc, argv, &options) != 0) return 2;
  if (digits_read(options.data_path, &train, &test) != 0) return 1;
  if (options.ranks == 0 && !launched()) options.ranks = 2;
  if (options.ranks > 0) {
    where.unique_id = &id;
    where.ranks = options.ranks;
    where.rank = local_ranks_start(options.ranks, &id);
    if (where.rank < 0) return 1;
  }
  status = run(&where, &options, &train, &test);
  digits_free(&train);
  digits_free(&test);
  return options.ranks > 0 ? local_ranks_finish(where.rank, options.ranks, status) : status;
}
