package emptydir

import (
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// noLimit is the zero size; a sizeLimit of 0 means the same, as in the kubelet.
const noLimit int64 = 0

func sizeLimit(source *v1.EmptyDirVolumeSource) int64 {
	if source.SizeLimit == nil {
		return noLimit
	}
	return source.SizeLimit.Value()
}

func desired(args volume.MounterArgs) int64 {
	if args.DesiredSize == nil {
		return noLimit
	}
	return max(args.DesiredSize.Value(), noLimit)
}
