/* PufferLib's Pong, its source untouched, with every draw taken from the caller.
 *
 * rand() is called in reset_round only, where a parameter named env is in scope; the macro below
 * hands that environment to a function that looks up its own draw. The same hook runs before the
 * C code overwrites what a finished game looked like, so it can keep the final observation.
 *
 * Called through ctypes with the GIL held, so one static record of the call in progress is enough.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct Pong;
static int tape_draw(struct Pong* env);
#define rand() tape_draw(env)
#define srand(seed) ((void)(seed))
#include "binding.c"
#undef rand
#undef srand

enum { OBSERVATION_SIZE = 8, REALS = 6, COUNTS = 3 };

/* Rows are found by an environment's place in the rewards buffer. */
typedef struct {
    const float* rewards;
    const int32_t* step_serve;   /* NULL during a reset of all rows */
    const int32_t* reset_serve;
    int32_t* draws;              /* number of draws of each row in this call */
    float* final_observation;    /* [N, 8] */
    int32_t* final_counts;       /* [N, 3]: score_l, score_r, tick at the end of the game */
} Call;

static Call call;

static int tape_draw(Pong* env) {
    int row = (int)(env->rewards - call.rewards);
    call.draws[row] += 1;
    if (call.step_serve == NULL) {
        return call.reset_serve[row];
    }
    if (!env->terminals[0]) {
        return call.step_serve[row];
    }
    memcpy(call.final_observation + row * OBSERVATION_SIZE, env->observations,
           OBSERVATION_SIZE * sizeof(float));
    int32_t* counts = call.final_counts + row * COUNTS;
    counts[0] = (int32_t)env->score_l;
    counts[1] = (int32_t)env->score_r;
    counts[2] = env->tick;
    return call.reset_serve[row];
}

/* A new game in every row. */
void tape_reset(VecEnv* vec, const int32_t* reset_serve, int32_t* draws) {
    call = (Call){.rewards = vec->envs[0]->rewards, .reset_serve = reset_serve, .draws = draws};
    for (int i = 0; i < vec->num_envs; i++) {
        c_reset(vec->envs[i]);
    }
}

/* One step of every row; step_serve starts a round after a point, reset_serve a new game. */
void tape_step(VecEnv* vec, const int32_t* step_serve, const int32_t* reset_serve, int32_t* draws,
               float* final_observation, int32_t* final_counts) {
    call = (Call){vec->envs[0]->rewards, step_serve, reset_serve, draws, final_observation,
                  final_counts};
    for (int i = 0; i < vec->num_envs; i++) {
        c_step(vec->envs[i]);
    }
}

/* State of every row: reals [N, 6] yl, yr, x, y, vx, vy; counts [N, 3] score_l, score_r, tick. */
void pong_read(const VecEnv* vec, float* reals, int32_t* counts) {
    for (int i = 0; i < vec->num_envs; i++, reals += REALS, counts += COUNTS) {
        const Pong* env = vec->envs[i];
        memcpy(reals, (float[REALS]){env->paddle_yl, env->paddle_yr, env->ball_x, env->ball_y,
                                     env->ball_vx, env->ball_vy}, REALS * sizeof(float));
        memcpy(counts, (int32_t[COUNTS]){(int32_t)env->score_l, (int32_t)env->score_r, env->tick},
               COUNTS * sizeof(int32_t));
    }
}

/* Inverse of pong_read. */
void pong_write(VecEnv* vec, const float* reals, const int32_t* counts) {
    for (int i = 0; i < vec->num_envs; i++, reals += REALS, counts += COUNTS) {
        Pong* env = vec->envs[i];
        env->paddle_yl = reals[0];
        env->paddle_yr = reals[1];
        env->ball_x = reals[2];
        env->ball_y = reals[3];
        env->ball_vx = reals[4];
        env->ball_vy = reals[5];
        env->score_l = (unsigned int)counts[0];
        env->score_r = (unsigned int)counts[1];
        env->tick = counts[2];
    }
}

/* Bytes that pong_save writes for one row. */
int pong_size(void) { return (int)sizeof(Pong); }

/* The whole struct of every row, its pointers blanked. */
void pong_save(const VecEnv* vec, char* bytes) {
    for (int i = 0; i < vec->num_envs; i++) {
        Pong env = *vec->envs[i];
        env.client = NULL;
        env.observations = env.actions = env.rewards = NULL;
        env.terminals = NULL;
        memcpy(bytes + (size_t)i * sizeof(Pong), &env, sizeof(Pong));
    }
}

/* Inverse of pong_save; every row keeps its own pointers. */
void pong_load(VecEnv* vec, const char* bytes) {
    for (int i = 0; i < vec->num_envs; i++) {
        Pong* env = vec->envs[i];
        Pong saved;
        memcpy(&saved, bytes + (size_t)i * sizeof(Pong), sizeof(Pong));
        saved.client = env->client;
        saved.observations = env->observations;
        saved.actions = env->actions;
        saved.rewards = env->rewards;
        saved.terminals = env->terminals;
        *env = saved;
    }
}

/* For the build that keeps its own rand(): what the C log holds of the games that just ended.
 * counts [N, 3] is written in those rows as in tape_step, and their logs are cleared. A game ends
 * when one side reaches max_score, so the logged difference gives both scores.
 */
void pong_take_log(VecEnv* vec, const unsigned char* terminals, int32_t* counts) {
    for (int i = 0; i < vec->num_envs; i++) {
        if (!terminals[i]) {
            continue;
        }
        Pong* env = vec->envs[i];
        int32_t most = (int32_t)env->max_score;
        int32_t difference = (int32_t)env->log.score;
        counts[i * COUNTS + 0] = difference < 0 ? most : most - difference;
        counts[i * COUNTS + 1] = difference < 0 ? most + difference : most;
        counts[i * COUNTS + 2] = (int32_t)env->log.episode_length;
        env->log = (Log){0};
    }
}
