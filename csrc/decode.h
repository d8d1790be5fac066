/* One decoded token of a language model on the CPU, from token ids and cache to logits, behind a C ABI.
 *
 * For every row of the batch, with the layers in order and parts that a model lacks left out:
 *     x = embedding[token]                                        or in_scale * unit(embedding[token])
 *     y = norm(x);  q, k, v, g = W_q y, W_k y, W_v y, W_g y       (biases added)
 *     q, k = rope(norm(q)), rope(norm(k));  k and v are stored in the cache
 *     x = x + W_o (attention(q, cache) * tanh(silu(g)) * head_scale)
 *     x = x + W_down (silu(W_gate norm(x)) * W_up norm(x))
 *     logits = W_head norm(x)                                     or out_scale * x . unit(embedding[n])
 * norm is RMSNorm. Attention is softmax with the scale key_width^-1/2, or screening as in screening.h.
 *
 * Weights, keys and values have one dtype; everything else is fp32, angles of RoPE fp64. The result does not depend on the
 * number of threads. Weights are read where they are: a change is seen by the next call.
 */
#ifndef KEYSIFT_DECODE_H
#define KEYSIFT_DECODE_H

#include "screening.h"

#ifdef __cplusplus
extern "C" {
#endif

enum keysift_attention { KEYSIFT_SOFTMAX = 0, KEYSIFT_SCREENING = 1 };

/* Keys of a prepared block: see keysift_decode_cache. */
#define KEYSIFT_PREPARED_KEYS 16
/* Numbers of a row and tile in keysift_decode_cache::search_state. */
#define KEYSIFT_SEARCH_STATE 16

/* How a query finds the accepted keys of a long ring. All ways accept the same keys. All but MOMENTS add them in the same order. AUTO
 * estimates which one reads least, from the queries before. */
enum keysift_search {
  KEYSIFT_SEARCH_AUTO = 0,
  KEYSIFT_SEARCH_SCAN = 1,   /* judge every key */
  KEYSIFT_SEARCH_SKETCH = 2, /* judge the keys that their 8-bit sketches do not refuse */
  KEYSIFT_SEARCH_GROUPS = 3, /* judge the keys of groups that their centres do not refuse; sketches where there are no groups */
  KEYSIFT_SEARCH_MOMENTS = 4 /* sums over all keys, minus the refused ones: for tiles that accept nearly all */
};

/* The largest batch. */
#define KEYSIFT_DECODE_ROWS 8

/* Matrices are (outputs, inputs), contiguous. NULL leaves a part out where that is said. */
#define KEYSIFT_DECODE_LAYER_FIELDS(F)                                                            \
  F(int64_t, heads)                                                                               \
  F(int64_t, kv_heads) /* divides heads */                                                        \
  F(int64_t, key_width)                                                                           \
  F(int64_t, value_width)                                                                         \
  F(int64_t, hidden_width) /* of the feed-forward block; 0: none */                               \
  F(int64_t, layer_window) /* the newest key and the layer_window - 1 before it; 0: all */        \
  F(int32_t, attention) /* keysift_attention */                                                   \
  F(uint32_t, flags) /* KEYSIFT_NO_ROTATION, KEYSIFT_NO_TANH */                                   \
  F(const void*, norm_gain) /* (width); NULL: no norm */                                          \
  F(const void*, q)                                                                               \
  F(const void*, k)                                                                               \
  F(const void*, v)                                                                               \
  F(const void*, o)                                                                               \
  F(const void*, gate) /* NULL: no gate */                                                        \
  F(const void*, q_bias) /* NULL: none; the same for the next three */                            \
  F(const void*, k_bias)                                                                          \
  F(const void*, v_bias)                                                                          \
  F(const void*, o_bias)                                                                          \
  F(const void*, q_gain) /* (key_width); NULL: no norm of queries; the same for keys */           \
  F(const void*, k_gain)                                                                          \
  F(const double*, frequencies) /* (key_width / 2), radians per position; NULL: no RoPE */        \
  F(double, position_divisor) /* of RoPE */                                                       \
  F(double, attention_factor) /* of RoPE: multiplies sine and cosine */                           \
  F(const float*, window) /* (heads), as in keysift_problem; only for screening */                \
  F(const float*, effective_window)                                                               \
  F(const float*, acceptance)                                                                     \
  F(const float*, head_scale) /* (heads); NULL: 1 */                                              \
  F(const void*, hidden_gain) /* (width) */                                                       \
  F(const void*, hidden_gate) /* (hidden_width, width) */                                         \
  F(const void*, hidden_up)                                                                       \
  F(const void*, hidden_down) /* (width, hidden_width) */                                         \
  F(double, norm_eps) /* of both norms of the layer */                                            \
  F(double, q_eps)                                                                                \
  F(double, k_eps)                                                                                \
  F(float, w_th)                                                                                  \
  F(int32_t, search) /* keysift_search; only for screening */
KEYSIFT_STRUCT(keysift_decode_layer, KEYSIFT_DECODE_LAYER_FIELDS);

/* Memory that must hold the same bytes as its copy: parameters from which prepared values were computed. */
#define KEYSIFT_DECODE_SOURCE_FIELDS(F) \
  F(const void*, memory)                \
  F(const void*, copy)                  \
  F(int64_t, bytes)
KEYSIFT_STRUCT(keysift_decode_source, KEYSIFT_DECODE_SOURCE_FIELDS);

#define KEYSIFT_DECODE_MODEL_FIELDS(F)                                                    \
  F(int64_t, width)                                                                       \
  F(int64_t, vocabulary)                                                                  \
  F(int64_t, layer_count)                                                                 \
  F(const keysift_decode_layer*, layers)                                                  \
  F(int32_t, dtype) /* of weights, cache and logits */                                    \
  F(int32_t, unit_rows) /* 1: rows of the embedding and of the head have length one */    \
  F(const void*, embedding) /* (vocabulary, width) */                                     \
  F(const void*, head) /* (vocabulary, width); may be the embedding */                    \
  F(const void*, final_gain) /* (width), or NULL */                                       \
  F(double, final_eps) /* 0: no final norm */                                             \
  F(double, in_scale)                                                                     \
  F(double, out_scale)                                                                    \
  F(const keysift_decode_source*, sources)                                                \
  F(int64_t, source_count)
KEYSIFT_STRUCT(keysift_decode_model, KEYSIFT_DECODE_MODEL_FIELDS);

/* The cache of one layer: the rings of all kv heads, in one tensor (batch, slots, width) each for keys and values. kv head g
 * owns ring[2 g + 1] slots from slot ring[2 g] on; token i of a row is in slot i mod ring[2 g + 1] of these. Every ring must
 * hold the tokens in its head's window.
 *
 * prepared: for screening, room for the same keys at unit length, rotated, in blocks of KEYSIFT_PREPARED_KEYS slots of a ring:
 * (batch, blocks, key_width + 1, KEYSIFT_PREPARED_KEYS), where the last row of a block holds the inverse lengths of the
 * values. prepared_tokens[b] counts the tokens of the row whose keys are prepared, as far as the rings hold them.
 *
 * search: room for sketches and groups of the prepared keys, keysift_search_bytes() for each row, initially zero; NULL if that is
 * 0. search_state: (batch, kv_heads, KEYSIFT_SEARCH_STATE), initially zero. The first four numbers describe the latest query: keys
 * in the window, keys that were read in fp32, keys that were accepted, keys in groups that were opened. */
#define KEYSIFT_DECODE_CACHE_FIELDS(F)                                         \
  F(void*, k)                                                                  \
  F(void*, v)                                                                  \
  F(const int64_t*, ring) /* (kv_heads, 2) */                                  \
  F(int64_t, slots) /* of all rings, and those that belong to no ring */       \
  F(float*, prepared)                                                          \
  F(int64_t, blocks) /* of all rings */                                        \
  F(int64_t*, prepared_tokens) /* (batch) */                                   \
  F(void*, search)                                                             \
  F(int64_t, search_bytes) /* of a row, a multiple of 64 */                    \
  F(int64_t*, search_state)                                                    \
  F(int64_t, finite) /* 1; set to 0 if a key or value that is not finite was stored */
KEYSIFT_STRUCT(keysift_decode_cache, KEYSIFT_DECODE_CACHE_FIELDS);

/* Bytes of keysift_decode_cache::search for one row: 0 if every ring is scanned. ring is (kv_heads, 2). */
KEYSIFT_API int64_t keysift_search_bytes(const keysift_decode_layer* layer, const int64_t* ring);

/* Appends one token per row to the cache and writes its logits (batch, vocabulary). lengths[b] counts the tokens of the row
 * before the call, positions[b] is the position of the new token. All keys and values in the cache must be finite. A row of
 * a head with a new query, key or value that is not finite becomes NaN.
 *
 * threads: 0 for as many as pay. Returns KEYSIFT_STALE, before anything is written, if a source changed. */
KEYSIFT_API int keysift_decode(const keysift_decode_model* model, keysift_decode_cache* caches, int64_t batch,
                               const int64_t* tokens, const int64_t* lengths, const int64_t* positions, int64_t threads,
                               void* logits);

#ifdef __cplusplus
}
#endif
#endif
