package localtoken

import (
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// The limits of a token's life in seconds come from the API's validation.
const (
	defaultExpiration = 3600
	minExpiration     = 600
	maxExpiration     = 1 << 32
)

// claims are the content of a Kubernetes service account token.
type claims struct {
	Audience   []string         `json:"aud"`
	Expiry     int64            `json:"exp"`
	IssuedAt   int64            `json:"iat"`
	Issuer     string           `json:"iss"`
	ID         string           `json:"jti"`
	Kubernetes kubernetesClaims `json:"kubernetes.io"`
	NotBefore  int64            `json:"nbf"`
	Subject    string           `json:"sub"`
}

type kubernetesClaims struct {
	Namespace      string      `json:"namespace"`
	Node           *objectName `json:"node,omitempty"`
	Pod            *objectName `json:"pod,omitempty"`
	ServiceAccount objectName  `json:"serviceaccount"`
}

type objectName struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid,omitempty"`
}

func (i *Issuer) newClaims(namespace, serviceAccount string, uid types.UID, spec authenticationv1.TokenRequestSpec, now, expires time.Time) claims {
	c := claims{
		Issuer:    IssuerName,
		Subject:   "system:serviceaccount:" + namespace + ":" + serviceAccount,
		Audience:  spec.Audiences,
		IssuedAt:  now.Unix(),
		NotBefore: now.Unix(),
		Expiry:    expires.Unix(),
		ID:        string(objects.NewUID()),
		Kubernetes: kubernetesClaims{
			Namespace:      namespace,
			ServiceAccount: objectName{Name: serviceAccount, UID: uid},
		},
	}
	if ref := spec.BoundObjectRef; ref != nil {
		c.Kubernetes.Pod = &objectName{Name: ref.Name, UID: ref.UID}
		if i.NodeName != "" {
			c.Kubernetes.Node = &objectName{Name: i.NodeName}
		}
	}
	return c
}

func setDefaults(spec *authenticationv1.TokenRequestSpec) {
	if len(spec.Audiences) == 0 {
		spec.Audiences = []string{IssuerName}
	}
	if spec.ExpirationSeconds == nil {
		spec.ExpirationSeconds = new(int64(defaultExpiration))
	}
}

func checkRequest(namespace, serviceAccount string, request *authenticationv1.TokenRequest) error {
	// A colon in either would make the subject mean another account.
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		return volume.Invalid("namespace", "%q: %s", namespace, strings.Join(problems, "; "))
	}
	if problems := validation.IsDNS1123Subdomain(serviceAccount); len(problems) > 0 {
		return volume.Invalid("service account", "%q: %s", serviceAccount, strings.Join(problems, "; "))
	}
	if request == nil {
		return volume.Invalid("token request", "is missing")
	}
	if slices.Contains(request.Spec.Audiences, "") {
		return volume.Invalid("token request's spec.audiences", "must not hold an empty audience; leave the list empty for the default")
	}
	if s := request.Spec.ExpirationSeconds; s != nil && (*s < minExpiration || *s > maxExpiration) {
		return volume.Invalid("token request's spec.expirationSeconds", "is %d, must be from %d to %d", *s, minExpiration, int64(maxExpiration))
	}
	return checkBoundObject(request.Spec.BoundObjectRef)
}

func checkBoundObject(ref *authenticationv1.BoundObjectReference) error {
	const field = "token request's spec.boundObjectRef"
	switch {
	case ref == nil:
		return nil
	case ref.Kind != "Pod":
		return volume.Invalid(field+".kind", "is %q; tokens can be bound to a Pod only", ref.Kind)
	case ref.APIVersion != "v1":
		return volume.Invalid(field+".apiVersion", `is %q, must be "v1"`, ref.APIVersion)
	case ref.Name == "":
		return volume.Invalid(field+".name", "must not be empty")
	case ref.UID == "":
		return volume.Invalid(field+".uid", "must not be empty")
	}
	return nil
}
