package volumetest

// contractChecks are about what a plugin answers without doing anything.
func contractChecks() []check {
	return []check{
		{
			name:     "contract/volume-name",
			proves:   "GetVolumeName returns the same name for every spec that means the same data, also in another process.",
			fakeOnly: true,
			each:     checkVolumeName,
		},
	}
}

func checkVolumeName(k *kit, c Case) {
	n := k.node(c)
	first, err := n.plugin.GetVolumeName(c.Spec(n))
	if err != nil || first == "" {
		k.Fatalf("GetVolumeName = %q, %v", first, err)
	}
	for _, again := range []*Node{n, n.restart()} {
		if got, err := again.plugin.GetVolumeName(c.Spec(n)); got != first || err != nil {
			k.Errorf("GetVolumeName = %q, %v; before it was %q", got, err, first)
		}
	}
}
