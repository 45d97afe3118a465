"""Every study, one line each. The order is the order of the pages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from precompute.studies import attention_sinks, krause_attention
from precompute.study import Study

_STUDIES: tuple[Study, ...] = (attention_sinks.STUDY, krause_attention.STUDY)
STUDIES: Mapping[str, Study] = MappingProxyType({study.slug: study for study in _STUDIES})
