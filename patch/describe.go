package patch

// Description is a kernel as its cubin describes it.
type Description struct {
	SM             int
	Name           string
	Code           []byte
	Registers      int
	Barriers       int
	Base           int // of the parameters in constant bank 0
	ParameterBytes int
	UsesCTAIDZ     bool
	Exits          []uint32 // offsets of EXIT instructions
}

// Describe reads the kernels of a cubin, without rewriting them.
func Describe(image []byte) ([]Description, error) {
	c, err := parseCubin(image)
	if err != nil {
		return nil, err
	}
	around := c.look(Options{})
	var list []Description
	for _, s := range c.symbols {
		if !s.isKernel() {
			continue
		}
		p := &plan{Kernel: Kernel{Name: s.name}, symbol: s.index}
		if err := c.findSections(p, around); err != nil {
			return nil, err
		}
		attributes, err := parseAttributes(p.info.data)
		if err != nil {
			return nil, err
		}
		if err := p.readParameters(attributes); err != nil {
			return nil, err
		}
		d := Description{
			SM: c.sm, Name: s.name, Code: p.text.data, Registers: around.registers[s.index],
			Base: int(p.base), ParameterBytes: p.ParameterBytes,
		}
		d.read(attributes)
		list = append(list, d)
	}
	return list, nil
}

func (d *Description) read(list []attribute) {
	for _, a := range list {
		switch a.code {
		case eiattrNumBarriers:
			d.Barriers = int(a.value)
		case eiattrCTAIDZUsed:
			d.UsesCTAIDZ = true
		case eiattrExitInstrOffsets:
			for data := a.data; len(data) >= 4; data = data[4:] {
				d.Exits = append(d.Exits, le.Uint32(data))
			}
		}
	}
}
