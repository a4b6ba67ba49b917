// request.h - what a load of code asks of the rewriter (preempt/rewriter), and the answer.
//
// The rewriter is Go, in the helper process.
#ifndef GPREEMPT_REQUEST_H
#define GPREEMPT_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

// The part of an image that a GPU takes, in a mapping of ours: patch.Image.
struct gp_picked {
	enum gp_form { GP_NOT_PICKED, GP_CUBIN, GP_FATBIN, GP_PTX, GP_FATBIN_PTX } form;
	void *memory;
	uint64_t bytes;
};

// The result for an image, as it stands in the cache on disk (patch/cache writes and checks it). Offsets count from the
// start, texts end with a 0.
struct gp_rewritten {
	char magic[8];
	uint32_t checksum, kernels;
	uint64_t bytes;              // of all this
	uint64_t image, image_bytes; // 0 bytes: no kernel has a guard, and the original is to be used
	uint8_t key[32];
	struct gp_rewritten_kernel { // sorted by name
		uint32_t name;
		uint32_t reason;     // why it has no guard; 0: it has one
		uint32_t layout;     // offset of u16 {offset, size} for each parameter
		uint16_t parameters; // without the hidden one
		uint16_t hidden;
		uint16_t refusal;     // enum gp_refusal, where there is a reason
		uint16_t independent; // 1: its blocks do not wait for each other, as far as its code tells
	} kernel[];
};

struct gp_request {
	// PICK reads what the GPU takes of an image. REWRITE makes the rewritten image of that, and reads it before if
	// nothing is picked yet.
	enum gp_question { GP_PICK, GP_REWRITE } what;
	const void *image;   // cubin, fatbin, its wrapper, or PTX, of any length
	const char *path;    // of a file, instead of the image
	uint32_t sm;         // compute capability of the GPU, 90 for 9.0
	const char *options; // REWRITE: all else that decides what the driver's linker makes of PTX
	// REWRITE, after the answer LINK: the cubin that the linker made of what was picked.
	const void *linked;
	uint64_t linked_bytes;
	uint8_t key[32]; // of that answer, as it came

	// The answer. LINK: the driver's linker has to make a cubin of what was picked first.
	enum gp_answer { GP_FAILED, GP_DONE, GP_LINK } answer;
	struct gp_picked picked;              // the asker unmaps it, after any answer
	const struct gp_rewritten *rewritten; // REWRITE, DONE: a mapping of its bytes, which the asker unmaps
	bool cached;                          // it comes from the cache
	char reason[128]; // FAILED; empty: the image has no code for the GPU, and the driver refuses it too
};

void gp_request_ask(struct gp_request *);       // returns when it is answered, or FAILED, if that does not happen
extern _Atomic uint64_t gp_request_patience_ns; // for tests: for how long it waits
// For the rewriter: takes a request, whose image may be gone already, or NULL; answers it. GP_BELL_REQUESTS is rung for each.
struct gp_request *gp_request_take(void);
void gp_request_answer(struct gp_request *, int answer);
void gp_requests_fail(void);              // those that were taken: the helper has ended
void gp_picked_unmap(struct gp_picked *); // and forgets it

#endif
