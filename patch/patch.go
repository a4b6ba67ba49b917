// Package patch rewrites compiled CUDA kernels so that their blocks can be stopped: every kernel of a
// cubin gets a prologue, the guard, and a hidden last parameter that the guard reads. It knows the
// containers (fatbin, ELF) and nothing of the CUDA API; images are untrusted input.
//
// A kernel's code is moved by the guard's length as a whole, so that everything in it that is relative
// to itself stays valid; what refers to it by offset is moved along. A kernel about which that cannot be
// shown is refused, with the reason, and stays as it is.
package patch

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrFormat says that an image is not what its type says, or of a form that is not known.
	ErrFormat = errors.New("unknown or damaged image")
	// ErrTooLarge says that an image, or what would become of it, is above Options.MaxSize.
	ErrTooLarge = errors.New("image too large")
)

// DefaultMaxSize is what Options.MaxSize is without a value.
const DefaultMaxSize = 1 << 30

// Options says how to rewrite.
type Options struct {
	Guards *Guards

	// SM keeps the rewriting of a fatbin to what a GPU of this compute capability (90 for 9.0) can
	// run; 0 rewrites for all.
	SM int

	// MaxSize bounds what comes out, and every image that is unpacked on the way.
	MaxSize int

	// Refuse, where it is set, may speak against a kernel by its (mangled) name.
	Refuse func(kernel string) (reason string)
}

func (o Options) maxSize() int {
	if o.MaxSize > 0 {
		return o.MaxSize
	}
	return DefaultMaxSize
}

// Kernel says what became of one kernel.
type Kernel struct {
	Name    string  `json:"name"`
	Guarded bool    `json:"guarded"`
	Reason  string  `json:"reason,omitempty"` // why it is not guarded
	Refusal Refusal `json:"-"`                // of which kind that is

	Registers        int `json:"registers"`
	GuardedRegisters int `json:"guarded_registers,omitempty"`

	Parameters     int `json:"parameters"`      // of the original: how many
	ParameterBytes int `json:"parameter_bytes"` // of the original
	HiddenOffset   int `json:"hidden_offset,omitempty"`

	Layout []Parameter `json:"-"` // the original's parameters, in order
}

// Refusal is why a kernel has no guard: enum gp_refusal of preempt/segment/segment.h.
type Refusal int

// Kinds of refusals.
const (
	RefusedForm  Refusal = iota // something about it is of a form that is not known
	RefusedRoom                 // no room for a parameter or for the guard's registers
	RefusedPeers                // Options.Refuse spoke against it
	RefusedSM                   // no guard for its architecture
)

// refusal is an error of another kind than RefusedForm.
type refusal struct {
	kind Refusal
	text string
}

func (r refusal) Error() string { return r.text }

func refused(kind Refusal, format string, values ...any) error {
	return refusal{kind, fmt.Sprintf(format, values...)}
}

// Parameter is the place of one parameter among a kernel's.
type Parameter struct{ Offset, Size uint16 }

// Report says what became of one cubin.
type Report struct {
	SM      int      `json:"sm"`
	Kernels []Kernel `json:"kernels"`
}

// Guarded counts the kernels that have a guard.
func (r Report) Guarded() (count int) {
	for _, k := range r.Kernels {
		if k.Guarded {
			count++
		}
	}
	return count
}

// Cubin rewrites one ELF image. What it returns is new, or the image itself where no kernel could be
// guarded. It is at most as long as the image, 4 KiB for every kernel and 1 KiB together.
func Cubin(image []byte, options Options) (out []byte, report Report, err error) {
	defer recovered(func(failure error) { out, report, err = nil, Report{}, failure })
	return rewriteCubin(image, options)
}

// recovered turns a panic into an error: a fault of this package must not end the program that it is
// loaded into. Nothing is known to panic; the fuzz targets call what stands behind it.
func recovered(fail func(error)) {
	if r := recover(); r != nil {
		fail(fmt.Errorf("%w: %v", ErrFormat, r))
	}
}

func rewriteCubin(image []byte, options Options) ([]byte, Report, error) {
	if len(image) > options.maxSize() {
		return nil, Report{}, ErrTooLarge
	}
	c, err := parseCubin(image)
	if err != nil {
		return nil, Report{}, err
	}
	report := Report{SM: c.sm}
	plans := c.plan(options)
	for _, p := range plans {
		report.Kernels = append(report.Kernels, p.Kernel)
	}
	if report.Guarded() == 0 {
		return image, report, nil
	}
	out, err := c.apply(plans, options)
	if err != nil {
		return nil, Report{}, err
	}
	return out, report, nil
}

// WaitsForPeers speaks, as Options.Refuse, against kernels of communication libraries: their blocks wait for
// blocks with higher numbers, or on other GPUs, without being launched cooperatively. Part of such a
// kernel must not be held back.
func WaitsForPeers(kernel string) (reason string) {
	for _, name := range []string{"ncclDevKernel", "ncclKernel", "ncclSymDevKernel", "ncclSymkDevKernel", "nvshmem", "mscclpp"} {
		if strings.Contains(kernel, name) {
			return "its blocks wait for one another (" + name + ")"
		}
	}
	return ""
}
