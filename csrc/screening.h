/* Screening attention on the CPU (Nakanishi, arXiv:2604.01178v3), behind a C ABI.
 *
 *     s_ij = <rotate(unit(q_i)), rotate(unit(k_j))>    rotate: MiPE, coordinates 0 and 1 only
 *     t_ij = max(1 - (1 - s_ij) / acceptance, 0)
 *     relevance_ij = t_ij^2 * (1 + cos(pi d / effective_window)) / 2    for 0 <= d < effective_window, else 0
 *     h_i = sum_j relevance_ij unit(v_j),   u_i = tanh(|h_i|) / |h_i| * h_i
 *
 * A batch row consists of segments (documents of a packed row, or the part that is not padding). Query i and key j of a segment
 * have the distance d = offset + i - j. This integer alone decides which keys are visible; no other key is read.
 * unit(x) = x / max(|x|, 1e-12). All arithmetic is fp32 in every dtype (angles and sums for scalars: fp64).
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

/* Status of a call. After any but KEYSIFT_OK, keysift_last_error() returns a message. */
enum keysift_status {
  KEYSIFT_OK = 0,
  KEYSIFT_BAD_ARGUMENT = 1,
  KEYSIFT_BAD_ISA = 2,   /* KEYSIFT_ISA names an unknown variant, or one this machine cannot run */
  KEYSIFT_NO_MEMORY = 3,
  KEYSIFT_NO_THREAD = 4, /* the parallel-for given to keysift_set_threads reported a failure */
  KEYSIFT_STALE = 5      /* values that were prepared for the call are out of date; see decode.h */
};

enum keysift_dtype { KEYSIFT_F32 = 0, KEYSIFT_BF16 = 1, KEYSIFT_F16 = 2 };

/* Steps to omit. A query that sees a NaN or infinite value gets NaN, even if it rejects the key: this reads every value in
   its window, unless the caller knows that all values are finite. */
enum keysift_flags {
  KEYSIFT_NO_ROTATION = 1,  /* s_ij = <unit(q_i), unit(k_j)> */
  KEYSIFT_NO_TANH = 2,      /* u_i = h_i */
  KEYSIFT_FINITE_VALUES = 4 /* v is finite and need not be checked */
};

/* Groups of the keys of one row by direction, with which forward refuses keys without reading them. They belong to one layer and one row;
 * calls that give them must have all keys of the row so far, from the first on. With `always` 0, an estimate decides which tiles use
 * them. One call at a time. keysift_key_groups_new() returns NULL if there is no memory. */
typedef struct keysift_key_groups keysift_key_groups;
KEYSIFT_API keysift_key_groups* keysift_key_groups_new(int32_t always);
KEYSIFT_API void keysift_key_groups_free(keysift_key_groups* groups);

/* Each structure is defined by a list of its fields. keysift_layout() reports sizes and offsets from the same lists. */
#define KEYSIFT_FIELD(type, name) type name;
#define KEYSIFT_STRUCT(name, FIELDS) \
  typedef struct name {              \
    FIELDS(KEYSIFT_FIELD)            \
  } name

/* A (batch, tile, row, width) tensor whose last dimension is contiguous. Strides count elements. */
#define KEYSIFT_VIEW_FIELDS(F) \
  F(void*, data)               \
  F(int64_t, batch_stride)     \
  F(int64_t, tile_stride)      \
  F(int64_t, row_stride)
KEYSIFT_STRUCT(keysift_view, KEYSIFT_VIEW_FIELDS);

/* Consecutive queries of one batch row, and the consecutive keys they may see. */
#define KEYSIFT_SEGMENT_FIELDS(F)                                     \
  F(int64_t, row)                                                   \
  F(int64_t, query) /* the first query */                           \
  F(int64_t, queries)                                               \
  F(int64_t, key) /* the first key */                               \
  F(int64_t, keys)                                                  \
  F(int64_t, offset) /* position of the first query minus that of the first key */
KEYSIFT_STRUCT(keysift_segment, KEYSIFT_SEGMENT_FIELDS);

/* ring: NULL, or k and v are the ring buffers of a cache, read in place, forward only. kv tile g owns ring[2 g + 1] rows,
 * starting at row ring[2 g]. Key j of batch row b is row (ring_first[b] + j) mod ring[2 g + 1] of these.
 * segments: sorted by row, query and key, without overlap. With segment_count -1, each row is one segment with this offset. */
#define KEYSIFT_PROBLEM_FIELDS(F)                                                            \
  F(int64_t, batch)                                                                          \
  F(int64_t, tiles)                                                                          \
  F(int64_t, kv_tiles) /* divides tiles; tile h reads kv tile h / (tiles / kv_tiles) */      \
  F(int64_t, queries)                                                                        \
  F(int64_t, keys)                                                                           \
  F(int64_t, key_width) /* at least 2 unless KEYSIFT_NO_ROTATION */                          \
  F(int64_t, value_width)                                                                    \
  F(int32_t, dtype) /* of q, k, v, u and of every gradient with their shape */               \
  F(uint32_t, flags)                                                                         \
  F(keysift_view, q) /* not normalised, not rotated: the kernel does both */                 \
  F(keysift_view, k)                                                                         \
  F(keysift_view, v)                                                                         \
  F(const int64_t*, ring) /* (kv_tiles, 2) */                                                \
  F(const int64_t*, ring_first) /* (batch), each at least 0 */                               \
  F(const keysift_segment*, segments)                                                            \
  F(int64_t, segment_count)                                                                    \
  F(int64_t, offset)                                                                         \
  F(const float*, window) /* (tiles) > 0 or +inf: sets the rotation */                       \
  F(const float*, effective_window) /* (tiles) > 0 or +inf: sets the Softmask; NULL: the window */      \
  F(const float*, acceptance) /* (tiles) in (0, 1] */                                        \
  F(float, w_th) /* windows from here on are not rotated; 256 in the paper */                \
  F(struct keysift_key_groups*, groups) /* NULL, or for forward with one segment of one row, and no ring */
KEYSIFT_STRUCT(keysift_problem, KEYSIFT_PROBLEM_FIELDS);

/* Gradients, overwritten. dwindow is the part through the rotation, deffective_window the part through the Softmask (0 where
 * effective_window is +inf); a caller whose effective_window is the window adds the two. */
#define KEYSIFT_GRADIENTS_FIELDS(F)  \
  F(keysift_view, dq)                \
  F(keysift_view, dk)                \
  F(keysift_view, dv)                \
  F(double*, dwindow) /* (tiles) */  \
  F(double*, deffective_window) /* (tiles) */   \
  F(double*, dacceptance) /* (tiles) */
KEYSIFT_STRUCT(keysift_gradients, KEYSIFT_GRADIENTS_FIELDS);

/* Writes u, and the inputs of backward:
 * norm, if not NULL, receives |h| as (batch, tiles, queries) fp32. It cannot be recovered from u once tanh saturates.
 * h, if not NULL, receives h as (batch, tiles, queries, value_width) fp32. In f32, u and norm suffice, because u has the
 * direction of h to fp32 precision. In bf16 and f16 it does not, and without h backward is exact to that dtype only.
 * Queries outside every segment get zeros. The result does not depend on the number of threads, and the result of a segment
 * does not depend on other segments. */
KEYSIFT_API int keysift_forward(const keysift_problem* problem, const keysift_view* u, float* norm, float* h);

/* norm, and u or h, as written by forward (h is preferred if both are given; all may be NULL with KEYSIFT_NO_TANH).
 * du is the gradient of u. Queries and keys outside every segment get zeros. The result is bitwise the same for any number
 * of threads up to 16, and above that for equal numbers. f16 gradients are clamped to the range of f16. */
KEYSIFT_API int keysift_backward(const keysift_problem* problem, const keysift_view* u, const float* norm,
                                 const float* h, const keysift_view* du, const keysift_gradients* gradients);

/* The signatures of torch_parallel_for and torch_get_num_threads, as libtorch_cpu exports them. */
typedef int32_t (*keysift_parallel_for)(int64_t begin, int64_t end, int64_t grain,
                                        void (*body)(int64_t begin, int64_t end, void* context), void* context);
typedef int32_t (*keysift_thread_count)(uint32_t* count);

/* Sets the thread pool. count is called in every call, so that a later torch.set_num_threads takes effect.
 * With parallel_for NULL, std::thread is used; with count NULL, `threads` threads (0: one per core).
 * After fork(), the child always uses std::thread, because the threads of the pool do not survive. */
KEYSIFT_API void keysift_set_threads(keysift_parallel_for parallel_for, keysift_thread_count count, int64_t threads);

/* "avx512", "avx2" or "plain": the best variant for this machine, or the one named by KEYSIFT_ISA. NULL if that cannot run. */
KEYSIFT_API const char* keysift_isa(void);

/* The variants that were built and can run on this machine, best first, separated by spaces. */
KEYSIFT_API const char* keysift_isas(void);

/* Whether KEYSIFT_ISA may name this variant on this machine. "" is the best one. */
enum keysift_isa_answer { KEYSIFT_ISA_RUNS = 0, KEYSIFT_ISA_NOT_HERE = 1, KEYSIFT_ISA_UNKNOWN = 2 };
KEYSIFT_API int keysift_isa_status(const char* name);

/* Size and field offsets of each structure, one line each. A caller in another language compares them with its own before
 * the first call: "keysift_view 32: data 0 batch_stride 8 ..." */
KEYSIFT_API const char* keysift_layout(void);

/* The message of the calling thread's last failure, "" if none. */
KEYSIFT_API const char* keysift_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
