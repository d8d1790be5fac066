"""Parameter counts of the models of arXiv:2604.01178, from version 3, and from version 1 for the last two."""

TABLE = {
    "multiscreen-psi8": 4_134_146,
    "multiscreen-psi16": 27_546_626,
    "multiscreen-psi32": 286_347_266,
    "multiscreen-psi48": 1_304_884_226,
    "multiscreen-psi64": 3_963_961_346,
    "multiscreen-28m-no-gate": 27_653_437,
    "transformer-8m": 7_613_312,
    "transformer-45m": 44_609_024,
    "transformer-353m": 353_453_056,
    "transformer-1.3b": 1_310_935_040,
    "transformer-18m": 17_584_384,
    "transformer-124m": 123_550_464,
}
