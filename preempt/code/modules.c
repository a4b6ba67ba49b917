// modules.c - modules, each loaded from the rewritten image alone, and those of libraries.
#define _GNU_SOURCE
#include "preempt/code/rewrite.h"

#include <stdlib.h>
#include <unistd.h>

struct module {
	struct module *next; // in a bucket
	CUmodule handle;
	CUcontext context;
	const struct gp_rewritten *rewritten; // NULL: it was loaded as it came
	bool of_library;                      // which owns the mapping
	bool stale;                           // its context is said to have ended, and nothing of it was launched since
};

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER; // nothing is asked under it
static struct module *modules[GP_BUCKETS];

static CUcontext current(void)
{
	CUcontext c = NULL;
	gp_driver.cuCtxGetCurrent(&c);
	return c;
}

void gp_module_remember(CUmodule handle, const struct gp_rewritten *r, bool of_library)
{
	struct module new = {.handle = handle, .context = current(), .rewritten = r, .of_library = of_library};
	struct module *m, **bucket = &modules[gp_bucket(handle)];
	pthread_mutex_lock(&registry);
	for (m = *bucket; m && m->handle != handle; m = m->next)
		;
	if (!m && (m = calloc(1, sizeof *m))) {
		m->next = *bucket;
		*bucket = m;
	} else if (m && !m->of_library && m->rewritten && m->rewritten != r) {
		gp_rewritten_unmap(m->rewritten); // of a module that ended with its context
	}
	if (m) {
		new.next = m->next;
		*m = new;
	}
	pthread_mutex_unlock(&registry);
}

// drop takes modules out of the registry: one, those of a library, or the stale ones.
static void drop(CUmodule handle, const struct gp_rewritten *of, bool stale)
{
	pthread_mutex_lock(&registry);
	for (int b = 0; b < GP_BUCKETS; b++)
		for (struct module **at = &modules[b]; *at;) {
			struct module *m = *at;
			if (m->handle != handle && (!of || m->rewritten != of) && !(stale && m->stale)) {
				at = &m->next;
				continue;
			}
			*at = m->next;
			if (!m->of_library && m->rewritten)
				gp_rewritten_unmap(m->rewritten);
			free(m);
		}
	pthread_mutex_unlock(&registry);
}

void gp_modules_drop(const struct gp_rewritten *of) { drop(NULL, of, false); }

static bool known(CUmodule handle)
{
	pthread_mutex_lock(&registry);
	const struct module *m;
	for (m = modules[gp_bucket(handle)]; m && m->handle != handle; m = m->next)
		;
	pthread_mutex_unlock(&registry);
	return m != NULL;
}

const void *gp_module_loading(struct gp_load *load)
{
	struct gp_jit jit;
	struct gp_request r = {.image = load->image, .path = load->path};

	load->token = NULL;
	if (!gp_blp_wanted() || (!load->image && !load->path))
		return NULL;
	r.sm = (uint32_t)gp_current_capability();
	if (!r.sm || (load->path && access(load->path, R_OK))) // no context, or no text or file: the driver says so
		return NULL;
	const char *reason = gp_jit_copy(&jit, load->options, load->option, load->value);
	if (reason) {
		gp_load_failed(reason);
		return NULL;
	}
	const struct gp_rewritten *rewritten = gp_rewrite(&r, &jit);
	if (!rewritten)
		return NULL;
	gp_rewritten_in_use();
	load->token = (void *)rewritten;
	return gp_rewritten_image(rewritten);
}

void gp_module_loaded(struct gp_load *load, CUmodule module)
{
	const struct gp_rewritten *r = load->token;
	if (!r) {
		if (gp_blp_wanted())
			gp_module_remember(module, NULL, false);
	} else if (module) {
		gp_rewritten_read(r);
		gp_module_remember(module, r, false);
		gp_code_forget(); // a handle that meant nothing before
	} else {
		gp_load_failed("the driver did not load the rewritten module");
		gp_rewritten_unmap(r);
	}
}

void gp_module_put_off(struct gp_load *load)
{
	gp_rewritten_uncount(load->token);
	gp_rewritten_unmap(load->token);
}

// gp_module_function counts a kernel whose module's load was not seen.
void gp_module_function(CUmodule module)
{
	if (!gp_blp_wanted() || known(module))
		return;
	gp_count(&gp_kernels.seen, 1);
	gp_count(&gp_kernels.refused[GP_REFUSED_RUNTIME], 1);
	gp_log_line("code that a CUDA runtime before 12.0 loads runs as it came, not preemptible: a program of "
		    "CUDA 12 or later is needed");
}

void gp_module_unloading(CUmodule module)
{
	gp_forget_loaded(NULL);
	if (!gp_images_rewritten)
		return;
	drop(module, NULL, false);
	gp_code_forget();
}

static const struct module *of_program(CUmodule handle, CUcontext context)
{
	const struct module *m;
	for (m = modules[gp_bucket(handle)]; m && m->handle != handle; m = m->next)
		;
	return m && m->context == context && !m->of_library && !m->stale ? m : NULL;
}

bool gp_module_is_known(CUmodule handle, CUcontext context)
{
	pthread_mutex_lock(&registry);
	bool is = of_program(handle, context);
	pthread_mutex_unlock(&registry);
	return is;
}

bool gp_module_take(CUmodule handle, CUcontext context)
{
	pthread_mutex_lock(&registry);
	struct module **at = &modules[gp_bucket(handle)], *m = (struct module *)of_program(handle, context);
	while (m && *at != m)
		at = &(*at)->next;
	if (m)
		*at = m->next;
	pthread_mutex_unlock(&registry);
	if (!m)
		return false;
	if (m->rewritten)
		gp_rewritten_unmap(m->rewritten);
	free(m);
	gp_forget_loaded(NULL);
	gp_code_forget();
	return true;
}

// A context may live on, if others hold it: what was loaded into it is still known then.
void gp_code_context_destroying(CUcontext context)
{
	enum { MAX_STALE = 4096 };
	int stale = 0;
	if (!gp_images_rewritten)
		return;
	pthread_mutex_lock(&registry);
	for (int b = 0; b < GP_BUCKETS; b++)
		for (struct module *m = modules[b]; m; m = m->next)
			stale += m->stale;
	pthread_mutex_unlock(&registry);
	if (stale > MAX_STALE) // of contexts that ended before
		drop(NULL, NULL, true);
	pthread_mutex_lock(&registry);
	for (int b = 0; b < GP_BUCKETS; b++)
		for (struct module *m = modules[b]; m; m = m->next)
			m->stale |= m->context == context;
	pthread_mutex_unlock(&registry);
	gp_code_forget();
}

// With the lock: a module of the context is used.
static void lives(CUcontext context)
{
	for (int b = 0; b < GP_BUCKETS; b++)
		for (struct module *m = modules[b]; m; m = m->next)
			m->stale &= m->context != context;
}

const struct gp_rewritten *gp_rewritten_module(CUmodule module)
{
	struct module *m;
	pthread_mutex_lock(&registry);
	for (m = modules[gp_bucket(module)]; m && m->handle != module; m = m->next)
		;
	const struct gp_rewritten *r = m ? m->rewritten : NULL;
	if (m && m->stale)
		lives(m->context);
	pthread_mutex_unlock(&registry);
	return r;
}
