// Package tmpdeps keeps go.mod stable while rooms are being built; deleted before release.
package tmpdeps

import (
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/moby/sys/mountinfo"
	_ "github.com/spf13/cobra"
	_ "go.uber.org/goleak"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
	_ "k8s.io/api/apps/v1"
	_ "k8s.io/api/authentication/v1"
	_ "k8s.io/api/batch/v1"
	_ "k8s.io/api/certificates/v1beta1"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/api/storage/v1"
	_ "k8s.io/apimachinery/pkg/api/equality"
	_ "k8s.io/apimachinery/pkg/api/validation"
	_ "k8s.io/apimachinery/pkg/labels"
	_ "k8s.io/apimachinery/pkg/runtime/serializer/json"
	_ "k8s.io/apimachinery/pkg/util/validation"
	_ "k8s.io/mount-utils"
	_ "k8s.io/utils/exec"
	_ "k8s.io/utils/ptr"
	_ "pgregory.net/rapid"
	_ "sigs.k8s.io/yaml"
)
