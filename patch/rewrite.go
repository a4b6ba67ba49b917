package patch

import (
	"fmt"
	"slices"
)

// Rewrite rewrites a cubin, or the cubins of a fatbin, and reports on each. The driver may take any of several cubins for the GPUs of a
// family. So a kernel gets a guard in all of them, with the same parameters, or in none. The result is new, or the image's data where no
// kernel got a guard.
func Rewrite(image Image, options Options) ([]byte, []FatbinEntry, error) {
	if image.PTX() {
		return nil, nil, ErrPTX
	}
	out, entries, err := rewriteOnce(image, options)
	if err != nil {
		return nil, nil, err
	}
	if options.differs = different(entries); len(options.differs) == 0 {
		return out, entries, nil
	}
	if out, entries, err = rewriteOnce(image, options); err != nil {
		return nil, nil, err
	}
	for k := range different(entries) {
		return nil, nil, fmt.Errorf("kernel %s has a guard in some cubins only", k.kernel)
	}
	return out, entries, nil
}

func rewriteOnce(image Image, options Options) ([]byte, []FatbinEntry, error) {
	if image.Form == FormFatbin {
		return Fatbin(image.Data, options)
	}
	out, report, err := Cubin(image.Data, options)
	return out, []FatbinEntry{{Kind: "elf", SM: report.SM, Report: report}}, err
}

// different lists the kernels for which cubins of one family have different results.
func different(entries []FatbinEntry) map[kernelOfFamily]bool {
	first, found := make(map[kernelOfFamily]Kernel), make(map[kernelOfFamily]bool)
	for _, entry := range entries {
		for _, k := range entry.Report.Kernels {
			name := kernelOfFamily{entry.Report.SM / 10, k.Name}
			other, known := first[name]
			if !known {
				first[name] = k
			} else if other.Guarded != k.Guarded ||
				k.Guarded && (other.HiddenOffset != k.HiddenOffset || !slices.Equal(other.Layout, k.Layout)) {
				found[name] = true
			}
		}
	}
	return found
}
