package patch

import "errors"

var (
	// ErrFormat means that an image is damaged, or of a form that this package does not know.
	ErrFormat = errors.New("unknown or damaged image")
	// ErrTooLarge means that an image, or the rewritten one, is larger than Options.MaxSize.
	ErrTooLarge = errors.New("image too large")
	// ErrUnconfirmed means that a rewritten image, read again, is not what was planned. The original is to be used.
	ErrUnconfirmed = errors.New("the rewritten image is not what was planned")
	// ErrNothing means that an image has no code for the GPU. The driver does not load it either.
	ErrNothing = errors.New("no code for the GPU")
	// ErrPTX means that the driver's linker has to compile an image first.
	ErrPTX = errors.New("PTX that is not compiled")
)
