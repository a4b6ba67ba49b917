// libraries.c - libraries, and their rewritten substitutes.
#define _GNU_SOURCE
#include "preempt/code/rewrite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LIBRARY_OPTIONS = 8 };

struct library {
	struct library *next, *next_second; // in buckets
	CUlibrary original, second;         // second: NULL until it is loaded, and where it is not
	const struct gp_rewritten *rewritten;
	const void *image;       // the program's, if it is to stay there
	struct gp_picked picked; // of the image otherwise, as long as the library is not settled
	struct gp_jit jit;
	bool preserved;
	unsigned options;
	int option[MAX_LIBRARY_OPTIONS];
	void *value[MAX_LIBRARY_OPTIONS];
	struct gp_host_table host_table;
	pthread_mutex_t lock; // of what follows
	bool settled;
};

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER; // of the lists; nothing is asked under it
static struct library *libraries[GP_BUCKETS], *seconds[GP_BUCKETS], *spare;

static struct library *find_library(CUlibrary handle)
{
	struct library *l;
	pthread_mutex_lock(&registry);
	for (l = libraries[gp_bucket(handle)]; l && l->original != handle; l = l->next)
		;
	pthread_mutex_unlock(&registry);
	return l;
}

static struct library *new_library(void)
{
	pthread_mutex_lock(&registry);
	struct library *l = spare;
	if (l)
		spare = l->next;
	pthread_mutex_unlock(&registry);
	return l ? l : calloc(1, sizeof *l); // zeros are an initialised mutex
}

// keep_options copies what the second library is to be loaded with.
static const char *keep_options(struct library *l, const struct gp_load *load)
{
	l->preserved = false;
	l->options = 0;
	if (load->library_options > MAX_LIBRARY_OPTIONS)
		return "too many options";
	for (unsigned i = 0; i < load->library_options; i++) {
		int option = load->library_option[i];
		void *value = load->library_value ? load->library_value[i] : NULL;
		if (option == CU_LIBRARY_BINARY_IS_PRESERVED) {
			l->preserved = true;
		} else if (option != CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE) {
			return "unknown option of a library";
		} else if (value) {
			l->host_table = *(struct gp_host_table *)value;
			value = &l->host_table;
		}
		l->option[i] = option;
		l->value[i] = value;
		l->options = i + 1;
	}
	return gp_jit_copy(&l->jit, load->options, load->option, load->value);
}

void gp_library_loaded(const struct gp_load *load, CUlibrary handle)
{
	struct gp_request r = {.what = GP_PICK, .image = load->image, .path = load->path};
	struct library *l = gp_blp_wanted() ? new_library() : NULL;
	if (!l)
		return;
	const char *reason = keep_options(l, load);
	l->original = handle;
	l->image = load->image;
	l->settled = false;
	if (!reason && !(r.sm = (uint32_t)gp_common_capability()))
		reason = "GPUs of several kinds";
	if (!reason && (!l->preserved || load->path)) { // the program may take it back
		gp_request_ask(&r);
		if (r.answer != GP_DONE)
			reason = r.reason;
		l->picked = r.picked;
	}
	if (reason) {
		gp_load_failed(reason);
		gp_picked_unmap(&l->picked);
		l->settled = true;
	}
	pthread_mutex_lock(&registry);
	size_t b = gp_bucket(handle);
	l->next = libraries[b];
	libraries[b] = l;
	pthread_mutex_unlock(&registry);
}

// settle loads what is to take the library's place.
static void settle(struct library *l)
{
	struct gp_request request = {.image = l->image, .picked = l->picked, .sm = (uint32_t)gp_common_capability()};
	CUlibrary second = NULL;
	l->picked = (struct gp_picked){0}; // the request's now
	const struct gp_rewritten *r = gp_rewrite(&request, &l->jit);
	if (!r)
		return;
	gp_rewritten_in_use();
	gp_code_loading(true);
	CUresult result = gp_driver.cuLibraryLoadData(&second, gp_rewritten_image(r), l->jit.option, l->jit.value,
						      l->jit.count, l->option, l->value, l->options);
	gp_code_loading(false);
	if (result) {
		char reason[64];
		snprintf(reason, sizeof reason, "cuLibraryLoadData: CUDA error %d", result);
		gp_load_failed(reason);
		gp_rewritten_unmap(r);
		return;
	}
	if (!l->preserved)
		gp_rewritten_read(r);
	pthread_mutex_lock(&registry);
	l->rewritten = r;
	l->second = second;
	size_t b = gp_bucket(second);
	l->next_second = seconds[b];
	seconds[b] = l;
	pthread_mutex_unlock(&registry);
	gp_code_forget();
}

CUlibrary gp_library_used(CUlibrary handle)
{
	struct library *l = find_library(handle);
	if (!l)
		return handle;
	pthread_mutex_lock(&l->lock);
	if (!l->settled) {
		int mode = CU_STREAM_CAPTURE_MODE_RELAXED; // something may be captured meanwhile
		if (!gp_driver.cuThreadExchangeStreamCaptureMode(&mode)) {
			settle(l);
			gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
		}
		gp_picked_unmap(&l->picked);
		l->settled = true;
	}
	CUlibrary used = l->second ? l->second : handle;
	pthread_mutex_unlock(&l->lock);
	return used;
}

static struct library *find_second(CUlibrary handle)
{
	struct library *l;
	pthread_mutex_lock(&registry);
	for (l = seconds[gp_bucket(handle)]; l && l->second != handle; l = l->next_second)
		;
	pthread_mutex_unlock(&registry);
	return l;
}

CUlibrary gp_library_of(CUlibrary handle)
{
	struct library *l = find_second(handle);
	return l ? l->original : handle;
}

static void take_out(struct library *l)
{
	struct library **at;
	for (at = &libraries[gp_bucket(l->original)]; *at && *at != l; at = &(*at)->next)
		;
	if (*at)
		*at = l->next;
	for (at = &seconds[gp_bucket(l->second)]; *at && *at != l; at = &(*at)->next_second)
		;
	if (*at)
		*at = l->next_second;
}

bool gp_library_is_known(CUlibrary handle) { return find_library(handle); }

bool gp_library_take(CUlibrary handle, struct gp_substitute *substitute)
{
	*substitute = (struct gp_substitute){NULL};
	struct library *l = find_library(handle);
	if (!l)
		return false;
	pthread_mutex_lock(&l->lock);
	pthread_mutex_lock(&registry);
	struct library *at = libraries[gp_bucket(handle)];
	while (at && at != l)
		at = at->next;
	bool takes = at && l->original == handle; // else another thread has
	if (takes)
		take_out(l);
	pthread_mutex_unlock(&registry);
	if (takes) {
		gp_picked_unmap(&l->picked);
		*substitute = (struct gp_substitute){l->second, l->rewritten};
		if (l->second)
			gp_modules_drop(l->rewritten);
		l->rewritten = NULL;
		l->second = NULL;
		l->settled = true;
	}
	pthread_mutex_unlock(&l->lock);
	if (!takes)
		return false;
	pthread_mutex_lock(&registry);
	l->next = spare; // not freed: another thread may have it in hand
	spare = l;
	pthread_mutex_unlock(&registry);
	gp_forget_loaded(NULL);
	gp_code_forget();
	return true;
}

void gp_substitute_unload(const struct gp_substitute *s)
{
	if (!s->library)
		return;
	gp_driver.cuLibraryUnload(s->library);
	gp_rewritten_unmap(s->image);
}

void gp_library_unloading(CUlibrary handle)
{
	struct gp_substitute substitute;
	if (gp_library_take(handle, &substitute))
		gp_substitute_unload(&substitute);
	else
		gp_forget_loaded(NULL);
}

const struct gp_rewritten *gp_rewritten_library(CUlibrary handle)
{
	struct library *l = find_second(handle);
	return l ? l->rewritten : NULL;
}

void gp_library_module(CUlibrary handle, CUmodule module)
{
	struct library *l = find_second(handle);
	if (l || gp_blp_wanted())
		gp_module_remember(module, l ? l->rewritten : NULL, true);
}

void gp_kernel_function(CUfunction kernel, CUfunction function)
{
	CUlibrary library;
	CUmodule module;
	if (gp_images_rewritten && gp_driver.cuKernelGetLibrary && !gp_driver.cuKernelGetLibrary(&library, kernel) &&
	    !gp_driver.cuFuncGetModule(&module, function))
		gp_library_module(library, module);
}

static const struct gp_rewritten *search(CUmodule module, const char *kernel)
{
	const struct gp_rewritten *found = NULL;
	CUlibrary candidates[64];
	int count = 0;
	CUmodule of;

	pthread_mutex_lock(&registry);
	for (int b = 0; b < GP_BUCKETS; b++)
		for (struct library *l = seconds[b]; l && count < 64; l = l->next_second)
			if (gp_rewritten_find(l->rewritten, kernel))
				candidates[count++] = l->second;
	pthread_mutex_unlock(&registry);
	for (int i = 0; i < count && !found; i++) {
		gp_code_loading(true);
		CUresult result = gp_driver.cuLibraryGetModule(&of, candidates[i]);
		gp_code_loading(false);
		if (!result && of == module) {
			gp_library_module(candidates[i], module);
			found = gp_rewritten_library(candidates[i]);
		}
	}
	return found;
}

const struct gp_rewritten *gp_library_of_module(CUmodule module, const char *kernel)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED; // it may load the module
	if (!gp_driver.cuLibraryGetModule || !kernel || gp_driver.cuThreadExchangeStreamCaptureMode(&mode))
		return NULL;
	const struct gp_rewritten *found = search(module, kernel);
	gp_driver.cuThreadExchangeStreamCaptureMode(&mode);
	return found;
}
