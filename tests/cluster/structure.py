"""What KubeRay and Kubernetes accept of the fields that we use, written down as JSON Schema;
anything else is refused.

Sources: KubeRay's reference of `ray.io/v1` (docs.ray.io, "KubeRay CRD API reference", v1.6.2 and
v1.7.1) and the Kubernetes API reference. A field that we do not use is missing here on purpose:
whoever adds one looks it up first.
"""

TEXT = {"type": "string"}
FLAG = {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 0}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"}
QUANTITY = {"type": "string", "pattern": "^[0-9]+(m|Ki|Mi|Gi|Ti)?$"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
WORDS = {"type": "array", "items": TEXT}


def fields(required: str = "", **properties: dict) -> dict:
    """An object of exactly these fields."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def some(item: dict) -> dict:
    return {"type": "array", "items": item, "minItems": 1}


def one_of(*values: str) -> dict:
    return {"enum": list(values)}


SECRET_KEY = fields("name key", name=NAME, key=TEXT, optional=FLAG)
FROM_SECRET = fields("secretKeyRef", secretKeyRef=SECRET_KEY)
ENVIRONMENT = {
    "type": "array",
    "items": {
        "oneOf": [
            fields("name value", name=TEXT, value=TEXT),
            fields("name valueFrom", name=TEXT, valueFrom=FROM_SECRET),
        ]
    },
}
QUANTITIES = {"type": "object", "additionalProperties": QUANTITY}
RESOURCES = fields("requests limits", requests=QUANTITIES, limits=QUANTITIES)
SECCOMP = fields("type", type=one_of("RuntimeDefault"))
CONTAINER_SECURITY = fields(
    "allowPrivilegeEscalation capabilities",
    allowPrivilegeEscalation={"const": False},
    capabilities=fields("drop", drop={"const": ["ALL"]}),
)
POD_SECURITY = fields(
    "runAsNonRoot runAsUser seccompProfile",
    runAsNonRoot={"const": True},
    runAsUser={"type": "integer", "minimum": 1},
    fsGroup={"type": "integer", "minimum": 1},
    fsGroupChangePolicy=one_of("OnRootMismatch", "Always"),
    seccompProfile=SECCOMP,
)
PROBE = fields(
    "",
    httpGet=fields("path port", path=TEXT, port={"type": ["string", "integer"]}),
    exec=fields("command", command=WORDS),
    periodSeconds=COUNT,
    initialDelaySeconds=COUNT,
)
CONTAINER = fields(
    "name image resources securityContext",
    name=NAME,
    image=TEXT,
    command=WORDS,
    args=WORDS,
    env=ENVIRONMENT,
    ports=some(fields("containerPort name", containerPort=PORT, name=NAME)),
    resources=RESOURCES,
    securityContext=CONTAINER_SECURITY,
    readinessProbe=PROBE,
    livenessProbe=PROBE,
    volumeMounts=some(fields("name mountPath", name=NAME, mountPath=TEXT, readOnly=FLAG)),
)
VOLUME = fields(
    "name",
    name=NAME,
    emptyDir=fields("", medium=one_of("Memory"), sizeLimit=QUANTITY),
    persistentVolumeClaim=fields("claimName", claimName=NAME),
    configMap=fields("name", name=NAME),
)
TOLERATION = fields(
    "key operator effect",
    key=TEXT,
    operator=one_of("Exists", "Equal"),
    value=TEXT,
    effect=one_of("NoSchedule", "NoExecute", "PreferNoSchedule"),
)
POD = fields(
    "metadata spec",
    metadata=fields("labels", labels=TEXTS),
    spec=fields(
        "containers nodeSelector securityContext",
        containers={**some(CONTAINER), "maxItems": 1},
        nodeSelector=TEXTS,
        tolerations=some(TOLERATION),
        securityContext=POD_SECURITY,
        restartPolicy=one_of("Never"),
        serviceAccountName=NAME,
        automountServiceAccountToken=FLAG,
        terminationGracePeriodSeconds=COUNT,
        volumes=some(VOLUME),
    ),
)
HEAD_GROUP = fields(
    "rayStartParams template",
    serviceType=one_of("ClusterIP"),
    enableIngress={"const": False},
    rayStartParams=TEXTS,
    resources=QUANTITIES,
    template=POD,
)
WORKER_GROUP = fields(
    "groupName minReplicas maxReplicas rayStartParams template",
    groupName=NAME,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    idleTimeoutSeconds=COUNT,
    rayStartParams=TEXTS,
    resources=QUANTITIES,
    template=POD,
)
RAY_CLUSTER = fields(
    "rayVersion headGroupSpec workerGroupSpecs enableInTreeAutoscaling authOptions",
    rayVersion=TEXT,
    authOptions=fields("mode secretName", mode={"const": "token"}, secretName=NAME),
    gcsFaultToleranceOptions=fields(
        "redisAddress", redisAddress=TEXT, redisPassword=fields("valueFrom", valueFrom=FROM_SECRET)
    ),
    enableInTreeAutoscaling={"const": True},
    autoscalerOptions=fields(
        "version",
        version=one_of("v1", "v2"),
        upscalingMode=one_of("Default", "Aggressive", "Conservative"),
        idleTimeoutSeconds=COUNT,
        resources=RESOURCES,
        securityContext=CONTAINER_SECURITY,
    ),
    headGroupSpec=HEAD_GROUP,
    workerGroupSpecs=some(WORKER_GROUP),
)
RAY_JOB = fields(
    "entrypoint rayClusterSpec",
    entrypoint=TEXT,
    entrypointResources=TEXT,
    submissionMode=one_of("K8sJobMode"),
    backoffLimit=COUNT,
    shutdownAfterJobFinishes=FLAG,
    ttlSecondsAfterFinished=COUNT,
    submitterConfig=fields("backoffLimit", backoffLimit=COUNT),
    submitterPodTemplate=POD,
    rayClusterSpec=RAY_CLUSTER,
)
SELECTOR = fields(
    "",
    matchLabels=TEXTS,
    matchExpressions=some(
        fields("key operator", key=TEXT, operator=one_of("Exists", "In"), values=WORDS)
    ),
)
PEER = fields("", podSelector=SELECTOR, namespaceSelector=SELECTOR)
NETWORK_POLICY = fields(
    "podSelector policyTypes",
    podSelector=SELECTOR,
    policyTypes=some(one_of("Ingress", "Egress")),
    ingress=some(fields("from", **{"from": some(PEER), "ports": some(fields("port", port=PORT))})),
)
CLAIM = fields(
    "accessModes resources",
    accessModes=some(one_of("ReadWriteMany", "ReadWriteOnce")),
    storageClassName=TEXT,
    resources=fields("requests", requests=QUANTITIES),
)
TEMPLATED = {"replicas": COUNT, "selector": SELECTOR, "template": POD}
SPECS = {
    ("ray.io/v1", "RayCluster"): RAY_CLUSTER,
    ("ray.io/v1", "RayJob"): RAY_JOB,
    ("networking.k8s.io/v1", "NetworkPolicy"): NETWORK_POLICY,
    ("v1", "PersistentVolumeClaim"): CLAIM,
    ("v1", "Service"): fields(
        "type selector ports",
        type=one_of("ClusterIP"),
        selector=TEXTS,
        ports=some(fields("name port", name=NAME, port=PORT)),
    ),
    ("apps/v1", "Deployment"): fields(
        "selector template",
        **TEMPLATED,
        strategy=fields("type", type=one_of("Recreate", "RollingUpdate")),
    ),
    ("apps/v1", "StatefulSet"): fields(
        "selector template serviceName",
        **TEMPLATED,
        serviceName=NAME,
        volumeClaimTemplates=some(
            fields("metadata spec", metadata=fields("name", name=NAME), spec=CLAIM)
        ),
    ),
    ("v1", "Namespace"): None,
    ("v1", "ServiceAccount"): None,
}


def schema_of(api_version: str, kind: str) -> dict:
    """The schema of an object; ValueError when we have none for it."""
    if (api_version, kind) not in SPECS:
        raise ValueError(
            f"{kind} of {api_version} is not among the kinds that we use: {sorted(SPECS)}"
        )
    spec = SPECS[api_version, kind]
    head = {
        "apiVersion": {"const": api_version},
        "kind": {"const": kind},
        "metadata": fields("name", name=NAME, namespace=NAME, labels=TEXTS),
    }
    return (
        fields("apiVersion kind metadata spec", **head, spec=spec)
        if spec
        else fields("metadata", **head)
    )
