"""Textbook organic reactions as reaction SMILES: reactants, `>>`, product.

Written down here from general chemical knowledge (facts, no data set). Each is balanced only in the
sense of rxnmapper's training data: by-products are left out.
"""

from __future__ import annotations

REACTIONS: tuple[tuple[str, str], ...] = (
    ("Fischer esterification", "CC(=O)O.CCO>>CC(=O)OCC"),
    ("Amide coupling", "O=C(O)c1ccccc1.NCc1ccccc1>>O=C(NCc1ccccc1)c1ccccc1"),
    ("Suzuki coupling", "Brc1ccc(C)cc1.OB(O)c1ccccc1>>Cc1ccc(-c2ccccc2)cc1"),
    ("Acetylation of salicylic acid", "CC(=O)OC(C)=O.O=C(O)c1ccccc1O>>CC(=O)Oc1ccccc1C(=O)O"),
    ("Acetylation of aminophenol", "CC(=O)OC(C)=O.Nc1ccc(O)cc1>>CC(=O)Nc1ccc(O)cc1"),
    ("Williamson ether synthesis", "Oc1ccccc1.CCBr>>CCOc1ccccc1"),
    ("Reductive amination", "O=Cc1ccccc1.NC1CCCCC1>>C(NC1CCCCC1)c1ccccc1"),
    ("Diels-Alder", "C=CC=C.O=C1C=CC(=O)O1>>O=C1OC(=O)C2CC=CCC12"),
    ("Ketone reduction", "CC(=O)c1ccccc1.[BH4-].[Na+]>>CC(O)c1ccccc1"),
    ("Boc protection", "CC(C)(C)OC(=O)OC(=O)OC(C)(C)C.NCc1ccccc1>>CC(C)(C)OC(=O)NCc1ccccc1"),
    ("Boc removal", "CC(C)(C)OC(=O)NCc1ccccc1.O=C(O)C(F)(F)F>>NCc1ccccc1"),
    ("Nitration", "Cc1ccccc1.O=[N+]([O-])O>>Cc1ccc([N+](=O)[O-])cc1"),
    ("Nitro reduction", "O=[N+]([O-])c1ccc(Cl)cc1.[H][H]>>Nc1ccc(Cl)cc1"),
    ("Ester hydrolysis", "CCOC(=O)c1ccc(Br)cc1.[OH-].[Na+]>>O=C(O)c1ccc(Br)cc1"),
    ("Sulfonamide formation", "Cc1ccc(S(=O)(=O)Cl)cc1.NCCO>>Cc1ccc(S(=O)(=O)NCCO)cc1"),
    ("Wittig olefination", "O=Cc1ccccc1.C=P(c1ccccc1)(c1ccccc1)c1ccccc1>>C=Cc1ccccc1"),
    ("Grignard addition", "O=Cc1ccccc1.C[Mg]Br>>CC(O)c1ccccc1"),
    ("Friedel-Crafts acylation", "c1ccccc1.CC(=O)Cl.Cl[Al](Cl)Cl>>CC(=O)c1ccccc1"),
    ("Sonogashira coupling", "Ic1ccccc1.C#CCCO>>OCCC#Cc1ccccc1"),
    ("Aldol condensation", "CC(=O)c1ccccc1.O=Cc1ccccc1>>O=C(C=Cc1ccccc1)c1ccccc1"),
)
