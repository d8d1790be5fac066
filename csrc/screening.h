/* Screening attention on the CPU (Nakanishi, arXiv:2604.01178v3), behind a C ABI.
 *
 *     s_ij = <turn(unit(q_i)), turn(unit(k_j))>        turn: MiPE, coordinates 0 and 1 only
 *     t_ij = max(1 - (1 - s_ij) / acceptance, 0)
 *     relevance_ij = t_ij^2 * (1 + cos(pi d / reach)) / 2    for 0 <= d < reach, else 0
 *     h_i = sum_j relevance_ij unit(v_j),   u_i = tanh(|h_i|) / |h_i| * h_i
 *
 * A batch row is cut into pieces (documents of a packed row, or what is not padding). Query i and key j of one piece are
 * d = offset + i - j apart, an integer that alone decides which keys are seen; no key outside is read, and no other piece.
 * unit(x) = x / max(|x|, 1e-12). All arithmetic is fp32 (angles and scalar sums: fp64) whatever the dtype.
 *
 * Every function may be called from several threads at once, and after fork().
 */
#ifndef KEYSIFT_SCREENING_H
#define KEYSIFT_SCREENING_H

#include <stdint.h>

#if defined(__GNUC__)
#define KEYSIFT_API __attribute__((visibility("default")))
#else
#define KEYSIFT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What a call returns. Anything but KEYSIFT_OK leaves a sentence in keysift_last_error(). */
enum keysift_status {
  KEYSIFT_OK = 0,
  KEYSIFT_BAD_ARGUMENT = 1,
  KEYSIFT_BAD_ISA = 2,   /* KEYSIFT_ISA names an unknown variant, or one this machine cannot run */
  KEYSIFT_NO_MEMORY = 3,
  KEYSIFT_NO_THREAD = 4  /* the parallel-for given to keysift_set_threads reported a failure */
};

enum keysift_dtype { KEYSIFT_F32 = 0, KEYSIFT_BF16 = 1, KEYSIFT_F16 = 2 };

/* Pieces to leave out. */
enum keysift_flags {
  KEYSIFT_NO_ROTATION = 1, /* s_ij = <unit(q_i), unit(k_j)> */
  KEYSIFT_NO_TANH = 2      /* u_i = h_i */
};

/* A (batch, tile, row, width) tensor whose last dimension is contiguous. Strides count elements. */
typedef struct keysift_view {
  void* data;
  int64_t batch_stride;
  int64_t tile_stride;
  int64_t row_stride;
} keysift_view;

/* A run of queries of one batch row, and the run of keys they may see. */
typedef struct keysift_piece {
  int64_t row;
  int64_t query, queries; /* the first one, and how many */
  int64_t key, keys;
  int64_t offset; /* position of the first query minus that of the first key */
} keysift_piece;

typedef struct keysift_problem {
  int64_t batch;
  int64_t tiles;
  int64_t kv_tiles; /* divides tiles; query tile h reads kv tile h / (tiles / kv_tiles) */
  int64_t queries;
  int64_t keys;
  int64_t key_width;   /* at least 2 unless KEYSIFT_NO_ROTATION */
  int64_t value_width;
  int32_t dtype;       /* of q, k, v, u and of every gradient with their shape */
  uint32_t flags;
  keysift_view q, k, v; /* raw: unit length and rotation happen inside */
  /* NULL: key j is row j of k and v. Otherwise they are a cache, read where it lies, forward only: kv tile g owns ring[2 g + 1]
   * rows from ring[2 g] on, and key j of batch row b is the one at (ring_first[b] + j) mod ring[2 g + 1] of them. */
  const int64_t* ring;       /* (kv_tiles, 2) */
  const int64_t* ring_first; /* (batch) at least 0 */
  const keysift_piece* pieces; /* by row, and in a row by query and by key, none overlapping */
  int64_t piece_count;         /* -1: each row is one piece, of this offset */
  int64_t offset;
  const float* window;     /* (tiles) > 0 or +inf: drives the rotation */
  const float* reach;      /* (tiles) > 0 or +inf: drives the Softmask; NULL: the window */
  const float* acceptance; /* (tiles) in (0, 1] */
  float w_th;              /* the rotation ends at this window; the paper's 256 */
} keysift_problem;

/* Gradients. dwindow is the part through the rotation, dreach the part through the Softmask (0 where reach is +inf):
 * a caller whose reach is the window adds the two. All of them are overwritten, not added to. */
typedef struct keysift_gradients {
  keysift_view dq, dk, dv;
  double* dwindow;     /* (tiles) */
  double* dreach;      /* (tiles) */
  double* dacceptance; /* (tiles) */
} keysift_gradients;

/* Writes u, and what backward will need:
 * norm, if not NULL, gets |h| as (batch, tiles, queries) fp32. It cannot be had back from u once tanh saturates.
 * h, if not NULL, gets h as (batch, tiles, queries, value_width) fp32. With f32, u and norm are enough, because u still has
 * the direction of h to fp32 precision; with bf16 and f16 it has not, and backward is only exact to that dtype without h.
 * Queries that no piece holds get zeros. The result does not depend on the number of threads, and that of a piece not on
 * the other pieces. */
KEYSIFT_API int keysift_forward(const keysift_problem* problem, const keysift_view* u, float* norm, float* h);

/* norm, and u or h, as forward wrote them (h is preferred if both are given; all may be NULL under KEYSIFT_NO_TANH);
 * du is the gradient of u. Queries and keys that no piece holds get zeros.
 * The result is bitwise the same for any number of threads up to 16; above that, for the same number.
 * Gradients that leave the range of f16 are clamped to it. */
KEYSIFT_API int keysift_backward(const keysift_problem* problem, const keysift_view* u, const float* norm,
                                 const float* h, const keysift_view* du, const keysift_gradients* gradients);

/* The signatures of torch_parallel_for and torch_get_num_threads, as libtorch_cpu exports them. */
typedef int32_t (*keysift_parallel_for)(int64_t begin, int64_t end, int64_t grain,
                                        void (*body)(int64_t begin, int64_t end, void* context), void* context);
typedef int32_t (*keysift_thread_count)(uint32_t* count);

/* Hands over the caller's thread pool. count is asked at every call, so a later torch.set_num_threads is followed.
 * With parallel_for NULL, std::thread is used; with count NULL, `threads` (0: one per core).
 * A child made by fork() always uses std::thread: the pool's threads did not survive. */
KEYSIFT_API void keysift_set_threads(keysift_parallel_for parallel_for, keysift_thread_count count, int64_t threads);

/* "avx512", "avx2" or "plain": the best this machine has, or what KEYSIFT_ISA asks for. NULL if that failed. */
KEYSIFT_API const char* keysift_isa(void);

/* The variants that were built and run on this machine, best first, with a space between. */
KEYSIFT_API const char* keysift_isas(void);

/* Whether a variant can be asked for by KEYSIFT_ISA here. "" asks for the best. */
enum keysift_isa_answer { KEYSIFT_ISA_RUNS = 0, KEYSIFT_ISA_NOT_HERE = 1, KEYSIFT_ISA_UNKNOWN = 2 };
KEYSIFT_API int keysift_isa_status(const char* name);

/* Size and field offsets of each structure above, a line each, so that a caller in another language can compare its own
 * before it calls anything: "keysift_view 32: data 0 batch_stride 8 ..." */
KEYSIFT_API const char* keysift_layout(void);

/* The calling thread's last failure, "" if none. */
KEYSIFT_API const char* keysift_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
