package explain

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
)

// maxNamed is how many refused manifests a sentence names.
const maxNamed = 5

// apart separates volumes from refused manifests.
func apart(all []nodeserver.Volume) (volumes, refused []nodeserver.Volume) {
	for _, v := range all {
		if v.IsRefused() {
			refused = append(refused, v)
		} else {
			volumes = append(volumes, v)
		}
	}
	return volumes, refused
}

// orRefused says that a pod that was not found is in a refused manifest, or may be, or else that
// it was not found.
func orRefused(refused []nodeserver.Volume, word string, notFound error) error {
	var files []string
	for _, v := range refused {
		for _, pod := range []string{word, word[:max(0, strings.LastIndexByte(word, '/'))]} {
			if pod != "" && v.Names("Pod", pod) {
				return fmt.Errorf("pod %s is in %s, which is refused: %s", pod, v.Source, v.Error)
			}
		}
		if files = append(files, filepath.Base(v.Source)); len(files) > maxNamed {
			files[maxNamed] = fmt.Sprintf("%d more", len(refused)-maxNamed)
			break
		}
	}
	if len(files) == 0 {
		return notFound
	}
	return fmt.Errorf("%w\nrefused manifests may have it, see podvol status: %s", notFound, strings.Join(files, ", "))
}

// keptBecause says what the node waits for until it tears down what no manifest has.
func keptBecause(refused []nodeserver.RefusedManifest) string {
	for _, m := range refused {
		if m.Question {
			return "no manifest has it, and it is kept: " + m.Reason
		}
	}
	if len(refused) > 0 {
		return "no manifest has it; it is kept until every manifest can be read"
	}
	return "not known yet; it is kept until that is known"
}
